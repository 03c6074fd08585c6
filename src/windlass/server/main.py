"""The server process: `python -m windlass.server --state DIR`.

Opens the store, creates required objects, starts the controllers, binds, and only then writes
`server.json`. One server per state folder; SIGTERM and SIGINT stop it in order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import fcntl
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from aiohttp import web

from windlass.agent.api.client import AgentGateway
from windlass.agent.node import inventory, privileges
from windlass.control.model import capabilities
from windlass.kinds.annotations import TEAM
from windlass.ledger import service
from windlass.podlogs import archive
from windlass.server import bootstrap, default_services
from windlass.server.app import App, make_app, stop_app
from windlass.server.auth import certificates, node_credentials
from windlass.server.http import connections, port_holder, request_handler, watchdog
from windlass.server.http.audit import AuditLog
from windlass.store import errors
from windlass.store.embedded import migrations
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.version import VERSION

log = logging.getLogger("windlass.server")

_STOP_SECONDS = 10.0
_SWITCH_SECONDS = 0.0005
_PORT_SECONDS = 5.0
"""How long another process may still have the port: connections of the last start end, or a job
ends."""
_PORT_POLL_SECONDS = 0.2
_RENEWAL_CHECK_SECONDS = 24 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    state: Path
    host: str
    port: int | None
    """None: the port of the last start, or any."""
    controllers: bool
    certificate: Path | None
    key: Path | None
    ledger: str | None = None
    """The address of the ledger's database; None: no ledger."""


COMPLAINT = "windlass.server: "
"""The prefix of the last line of output, in which a server reports why it cannot start."""


class StartError(Exception):
    """The reason why the server cannot start, for users."""


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    request_handler.quiet_about_strangers()
    # A thread that computes, such as the scheduler's, gives way to requests after this time.
    sys.setswitchinterval(_SWITCH_SECONDS)
    os.umask(0o077)  # the store, the ledger, uploads and logs are the engine's alone
    try:
        options = parse(argv)
        with _folder_lock(options.state):
            _close_to_others(options.state)
            _run(options)
    except StartError as problem:
        print(f"{COMPLAINT}{problem}", file=sys.stderr)  # noqa: T201 (for people)
        return 1
    return 0


def parse(argv: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m windlass.server", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the state folder")
    parser.add_argument(
        "--listen", default="", metavar="HOST:PORT", help="default: 127.0.0.1, port of last time"
    )
    parser.add_argument("--no-controllers", action="store_true", help="serve the API only")
    parser.add_argument("--tls-cert", type=Path, help="certificate chain instead of our own")
    parser.add_argument("--tls-key", type=Path, help="key of --tls-cert")
    service.add_option(parser)
    given = parser.parse_args(argv)
    if (given.tls_cert is None) != (given.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together")
    host, port = _address(given.listen)
    state = given.state.expanduser().absolute()
    return Options(
        state, host, port, not given.no_controllers, given.tls_cert, given.tls_key,
        None if given.no_controllers else service.address(given.ledger, state),
    )  # fmt: skip


def _run(options: Options) -> None:
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve(options))
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        raise StartError(
            f"there is no space left on the disk of {options.state}; free some and start again"
        ) from problem
    except migrations.StoreTooNew as problem:
        raise StartError(str(problem)) from problem
    except (migrations.StoreUnusable, errors.Unavailable) as problem:
        raise StartError(
            f"the store in {options.state} cannot be used: {problem}; if its disk is full, free "
            "some space; if the file is damaged, put a backup back with `windlass restore`"
        ) from problem


async def serve(options: Options) -> None:
    """Runs until a signal stops it."""
    with watchdog.watching():
        await _serve(options)


async def _serve(options: Options) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    api = await Api.open(options.state / "store.db")
    try:
        await bootstrap.ensure_objects(api)
        audit = AuditLog(options.state / "audit.log")
        gateway = AgentGateway(EmbeddedStore(api), options.state / "agent")
        app = await make_app(api, options.state, audit=audit, gateway=gateway)
        old = archive.sweep_regularly(options.state / "agent" / archive.FOLDER, EmbeddedStore(api))
        app.background.append(asyncio.create_task(old))
        try:
            async with _listening(options, app) as (url, authority):
                await bootstrap.ensure_kubeconfig(api, options.state / "kubeconfig", url, authority)
                name = inventory.node_name()
                await node_credentials.ensure(api, options.state, name, url, authority)
                facts = _engine(url, authority, ledger=options.ledger is not None)
                await bootstrap.write_engine(api, facts)
                # A server without controllers serves objects for others to run.
                app.engine = facts if options.controllers else None
                _sync_names(options.state)
                await _until_stopped(options, api, app, url, stop)
        finally:
            await stop_app(app)
            audit.close()
    finally:
        await api.close()


def _engine(url: str, authority: bytes | None, *, ledger: bool) -> capabilities.Engine:
    """The capabilities of this machine for runs."""
    return capabilities.Engine(
        images=False,
        addresses="node",
        server=url,
        authority=(authority or b"").decode(),
        isolation=privileges.level(),
        claims=False,
        admission=False,
        heartbeats=True,
        other_schedulers=False,
        python=sys.executable,
        environments=f"{TEAM}/environments",
        ledger=ledger,
    )


async def _until_stopped(
    options: Options, api: Api, app: App, url: str, stop: asyncio.Event
) -> None:
    ledger = service.Ledger(options.ledger) if options.ledger is not None else None
    app.use_ledger(ledger)
    registry = app.metrics.registry
    running = default_services.services(api, registry, ledger) if options.controllers else []
    tasks = [asyncio.create_task(service.run()) for service in running]
    described = options.state / "server.json"
    _describe(described, url)
    # Objects that exist now live as long as the process: the collector need not visit them again.
    gc.collect()
    gc.freeze()
    log.info("serving %s from %s", url, options.state)
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()  # a service that ends on its own ends the server
    finally:
        described.unlink(missing_ok=True)
        waiting.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(waiting, *tasks, return_exceptions=True)
        await app.stop()
        if ledger is not None:
            await ledger.stop()
        log.info("stopped")


@contextlib.asynccontextmanager
async def _listening(options: Options, app: App) -> AsyncIterator[tuple[str, bytes | None]]:
    """Bound and serving; yields the URL and the authority that clients must trust."""
    files = _tls_files(options)
    try:
        context = certificates.server_context(files)
    except (OSError, ssl.SSLError) as problem:
        raise StartError(f"the TLS certificate cannot be used: {problem}") from problem
    server = app.server()
    runner = web.ServerRunner(server, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    renewal = asyncio.create_task(_renew(options, context))
    try:
        listener = connections.Listener(server, await _bind(options), context)
        async with listener.accepting():
            host = _host_for_clients(options.host)
            yield f"https://{host}:{listener.port}", files.authority_pem()
    finally:
        renewal.cancel()
        await runner.cleanup()


async def _bind(options: Options) -> list[socket.socket]:
    """Listens on the given port, or on that of the last start, which clients know."""
    remembered = bootstrap.known_port(options.state / "kubeconfig")
    port = remembered if options.port is None else options.port
    deadline = time.monotonic() + (_PORT_SECONDS if port else 0.0)
    while True:
        try:
            return connections.bind(options.host, port)
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise StartError(_unbound(options, port, problem)) from problem
        await asyncio.sleep(_PORT_POLL_SECONDS)


def _unbound(options: Options, port: int, problem: OSError) -> str:
    why = os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
    address = f"{options.host}:{port}"
    if problem.errno != errno.EADDRINUSE:
        return f"cannot listen on {address}: {why}; choose another address with --listen HOST:PORT"
    holder = port_holder.describe(port)
    known = options.port is None
    return (
        f"cannot listen on {address}: {why}, by {holder}; stop it, or choose another address with "
        "--listen HOST:PORT" + (", after which kubeconfigs with this address fail" if known else "")
    )


async def _renew(options: Options, context: ssl.SSLContext) -> None:
    """A long-running server takes up its next certificate without a restart."""
    while True:
        await asyncio.sleep(_RENEWAL_CHECK_SECONDS)
        files = _tls_files(options)
        context.load_cert_chain(files.certificate, files.key)


def _tls_files(options: Options) -> certificates.Files:
    if options.certificate and options.key:
        return certificates.Files(options.certificate, options.key, None)
    return certificates.ensure(options.state / "tls", options.host)


@contextlib.contextmanager
def _folder_lock(state: Path) -> Iterator[None]:
    """Locks the folder for this process until it ends, however it ends."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(state / "lock", "a")  # noqa: SIM115 (held open on purpose)
    except OSError as problem:
        raise StartError(
            f"the state folder {state} cannot be used: {problem.strerror}"
        ) from problem
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"another server is already running on {state}; stop it with `windlass down`, or "
                "choose another folder with --state"
            ) from None
        yield


def _close_to_others(state: Path) -> None:
    """Takes the permissions of other users from what an older version or a copy left open. Jobs run
    as such users. Links are left alone."""
    for entry in os.scandir(state):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            mode = entry.stat(follow_symlinks=False).st_mode
            if mode & 0o077 and not entry.is_symlink():
                os.chmod(entry.path, stat.S_IMODE(mode) & ~0o077)


def _sync_names(state: Path) -> None:
    """Syncs the file names of the state folder before the server announces itself: else a power
    failure could leave a store with a new authority and admin token."""
    for folder in (state / "tls", state, state.parent):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _describe(path: Path, url: str) -> None:
    """Writes server.json atomically; start time and pid together identify this process."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    facts = {
        "pid": os.getpid(),
        "startTime": int(stat[19]),
        "url": url,
        "version": VERSION,
    }
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(msgspec.json.encode(facts))
    temporary.replace(path)


def _address(listen: str) -> tuple[str, int | None]:
    if not listen:
        return "127.0.0.1", None
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise StartError(f"--listen {listen!r} is not HOST:PORT, such as 127.0.0.1:7443")
    return host, int(port)


def _host_for_clients(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return f"[{host}]" if address.version == 6 else host
