"""Spark: a standalone master beside the driver on the first member, workers on the others.

`spark-submit app.py` and `python app.py` both find the master, in spark-defaults.conf.
"""

from __future__ import annotations

from windlass.frameworks.group import Framework, Group, Member, Rendered, Steps, led

_OVERHEAD = 384 << 20
"""What Spark keeps beside the heap of an executor."""
_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
_READY = """
import json, sys, urllib.request
state = json.load(urllib.request.urlopen(sys.argv[1] + "/json/", timeout=5))
sys.exit(state["aliveworkers"] < int(sys.argv[2]))
"""


def render(group: Group, member: Member) -> Rendered:
    lead, worker = group.lead, group.workers[0]
    master, web = lead.port + 1, lead.port + 2
    url = f"spark://{lead.address}:{master}"
    heap = max(512 << 20, worker.memory - _OVERHEAD) >> 20
    on_lead = 0 if group.leads_only else 1
    defaults = {
        "spark.master": url,
        "spark.driver.host": lead.address,
        "spark.driver.bindAddress": lead.address,
        "spark.executor.memory": f"{max(450, heap // (1 + on_lead))}m",
        "spark.ui.enabled": "false",
    }
    files = {
        "spark/log4j2.properties": _LOGGING,
        "spark/spark-defaults.conf": "".join(f"{k} {v}\n" for k, v in defaults.items()),
    }
    start = ["spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "{address}",
             "--webui-port", "0", "--cores", "{cpus}", "--memory", f"{heap}m", url]  # fmt: skip
    background = [
        ["spark-class", "org.apache.spark.deploy.master.Master", "--host", lead.address,
         "--port", str(master), "--webui-port", str(web)],
    ]  # fmt: skip
    if on_lead:
        background.append(start)
    steps = Steps(
        command=group.command,
        needs="spark-class",
        opens=master,
        background=background,
        workers=start,
        ready=[group.python, "-I", "-c", _READY, f"http://{lead.address}:{web}",
               str(len(group.workers))],
    )  # fmt: skip
    rendered = led(group, member, steps, files)
    variables = {
        "SPARK_CONF_DIR": f"{group.folder}/spark",
        "SPARK_LOCAL_IP": member.address,
        "SPARK_WORKER_DIR": f"{group.folder}/spark-work",
        "SPARK_NO_DAEMONIZE": "1",
    }
    return Rendered({**variables, **rendered.variables}, files, rendered.command)


FRAMEWORK = Framework(ports=3, render=render, secret=True, starts_ranks=True)
