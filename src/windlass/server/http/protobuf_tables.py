"""Field numbers of the Kubernetes messages that stock clients send as protobuf.

Read by `server.http.protobuf`. One line per message; a field is `number:name` and, unless it is a
plain string, `=type`. A trailing `?` on a type keeps zero values: the field is optional on the
wire, so that its presence has a meaning. Messages that are not listed are sent as JSON.
"""

from __future__ import annotations

KINDS: dict[tuple[str, str], str] = {
    ("v1", "Namespace"): "Namespace",
    ("v1", "ConfigMap"): "ConfigMap",
    ("v1", "Secret"): "Secret",
    ("v1", "ServiceAccount"): "ServiceAccount",
    ("v1", "Service"): "Service",
    ("v1", "Event"): "Event",
    ("v1", "Binding"): "Binding",
    ("v1", "DeleteOptions"): "DeleteOptions",
    ("meta.k8s.io/v1", "DeleteOptions"): "DeleteOptions",
    ("policy/v1", "Eviction"): "Eviction",
    ("policy/v1", "DeleteOptions"): "DeleteOptions",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "RoleBinding",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "RoleBinding",
    ("rbac.authorization.k8s.io/v1", "DeleteOptions"): "DeleteOptions",
    ("scheduling.k8s.io/v1", "PriorityClass"): "PriorityClass",
    ("scheduling.k8s.io/v1", "DeleteOptions"): "DeleteOptions",
    ("coordination.k8s.io/v1", "Lease"): "Lease",
    ("coordination.k8s.io/v1", "DeleteOptions"): "DeleteOptions",
    ("authentication.k8s.io/v1", "SelfSubjectReview"): "SelfSubjectReview",
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): "SelfSubjectAccessReview",
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): "SelfSubjectRulesReview",
}
"""(apiVersion, kind) of the envelope -> message."""

MESSAGES: dict[str, str] = {
    "Unknown": "1:typeMeta=TypeMeta 2:raw=raw 3:contentEncoding 4:contentType",
    "TypeMeta": "1:apiVersion 2:kind",
    "ObjectMeta": "1:name 2:generateName 3:namespace 4:selfLink 5:uid 6:resourceVersion"
    " 7:generation=int 8:creationTimestamp=Time 9:deletionTimestamp=Time"
    " 10:deletionGracePeriodSeconds=int? 11:labels=map 12:annotations=map"
    " 13:ownerReferences=OwnerReference[] 14:finalizers=string[] 17:managedFields=ignored",
    "OwnerReference": "1:kind 3:name 4:uid 5:apiVersion 6:controller=bool?"
    " 7:blockOwnerDeletion=bool?",
    "Namespace": "1:metadata=ObjectMeta 2:spec=NamespaceSpec 3:status=NamespaceStatus",
    "NamespaceSpec": "1:finalizers=string[]",
    "NamespaceStatus": "1:phase",
    "ConfigMap": "1:metadata=ObjectMeta 2:data=map 3:binaryData=bytesmap 4:immutable=bool?",
    "Secret": "1:metadata=ObjectMeta 2:data=bytesmap 3:type 4:stringData=map 5:immutable=bool?",
    "ServiceAccount": "1:metadata=ObjectMeta 2:secrets=ObjectReference[]"
    " 3:imagePullSecrets=LocalObjectReference[] 4:automountServiceAccountToken=bool?",
    "ObjectReference": "1:kind 2:namespace 3:name 4:uid 5:apiVersion 6:resourceVersion 7:fieldPath",
    "LocalObjectReference": "1:name",
    "Service": "1:metadata=ObjectMeta 2:spec=ServiceSpec 3:status=ServiceStatus",
    "ServiceSpec": "1:ports=ServicePort[] 2:selector=map 3:clusterIP 4:type 5:externalIPs=string[]"
    " 7:sessionAffinity 8:loadBalancerIP 9:loadBalancerSourceRanges=string[] 10:externalName"
    " 11:externalTrafficPolicy 12:healthCheckNodePort=int 13:publishNotReadyAddresses=bool"
    " 14:sessionAffinityConfig=SessionAffinityConfig 17:ipFamilyPolicy 18:clusterIPs=string[]"
    " 19:ipFamilies=string[] 20:allocateLoadBalancerNodePorts=bool? 21:loadBalancerClass"
    " 22:internalTrafficPolicy 23:trafficDistribution",
    "ServicePort": "1:name 2:protocol 3:port=int 4:targetPort=IntOrString 5:nodePort=int"
    " 6:appProtocol",
    "SessionAffinityConfig": "1:clientIP=ClientIPConfig",
    "ClientIPConfig": "1:timeoutSeconds=int?",
    "ServiceStatus": "1:loadBalancer=LoadBalancerStatus",
    "LoadBalancerStatus": "1:ingress=LoadBalancerIngress[]",
    "LoadBalancerIngress": "1:ip 2:hostname 3:ipMode",
    "Event": "1:metadata=ObjectMeta 2:involvedObject=ObjectReference 3:reason 4:message"
    " 5:source=EventSource 6:firstTimestamp=Time 7:lastTimestamp=Time 8:count=int 9:type"
    " 10:eventTime=MicroTime 11:series=EventSeries 12:action 13:related=ObjectReference"
    " 14:reportingComponent 15:reportingInstance",
    "EventSource": "1:component 2:host",
    "EventSeries": "1:count=int 2:lastObservedTime=MicroTime",
    "Binding": "1:metadata=ObjectMeta 2:target=ObjectReference",
    "RoleBinding": "1:metadata=ObjectMeta 2:subjects=Subject[] 3:roleRef=RoleRef",
    "Subject": "1:kind 2:apiGroup 3:name 4:namespace",
    "RoleRef": "1:apiGroup 2:kind 3:name",
    "DeleteOptions": "1:gracePeriodSeconds=int? 2:preconditions=Preconditions"
    " 3:orphanDependents=bool? 4:propagationPolicy 5:dryRun=string[]",
    "Preconditions": "1:uid 2:resourceVersion",
    "Eviction": "1:metadata=ObjectMeta 2:deleteOptions=DeleteOptions",
    "PriorityClass": "1:metadata=ObjectMeta 2:value=int? 3:globalDefault=bool 4:description"
    " 5:preemptionPolicy",
    "Lease": "1:metadata=ObjectMeta 2:spec=LeaseSpec",
    "LeaseSpec": "1:holderIdentity 2:leaseDurationSeconds=int? 3:acquireTime=MicroTime"
    " 4:renewTime=MicroTime 5:leaseTransitions=int? 6:strategy 7:preferredHolder",
    "SelfSubjectReview": "1:metadata=ObjectMeta 2:status=ignored",
    "SelfSubjectAccessReview": "1:metadata=ObjectMeta 2:spec=SelfSubjectAccessReviewSpec"
    " 3:status=ignored",
    "SelfSubjectAccessReviewSpec": "1:resourceAttributes=ResourceAttributes"
    " 2:nonResourceAttributes=NonResourceAttributes",
    "ResourceAttributes": "1:namespace 2:verb 3:group 4:version 5:resource 6:subresource 7:name",
    "NonResourceAttributes": "1:path 2:verb",
    "SelfSubjectRulesReview": "1:metadata=ObjectMeta 2:spec=SelfSubjectRulesReviewSpec"
    " 3:status=ignored",
    "SelfSubjectRulesReviewSpec": "1:namespace",
}
