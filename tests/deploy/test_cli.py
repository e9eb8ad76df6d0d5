"""The command line as a person meets it: help at once, exit codes that mean something, faults in one line."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.calls import OFFER_S, CallError, call
from deploy.cli import app
from deploy.terminal import table
from tests.running import free_port

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the stack of the person who runs the tests."""
    home = tmp_path / "home"
    monkeypatch.setenv("RATCHET_HOME", str(home))
    monkeypatch.setenv("DEPLOY_PORT", str(free_port()))
    monkeypatch.setenv("SERVING_PORT", str(free_port()))
    return home


@contextmanager
def answering(port: int, status: int, reply: object) -> Iterator[list[tuple[str, str, str, object]]]:
    """A server that gives one reply and remembers what it was asked."""
    asked: list[tuple[str, str, str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((self.command, self.path, self.headers.get("Authorization", ""), body))
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def key(own_home: Path) -> str:
    own_home.mkdir()
    (own_home / "api-key").write_text("sk-test\n")
    return "sk-test"


def deploy_port() -> int:
    from deploy.stack.plan import StackSettings

    return StackSettings().port


def test_help_comes_without_any_heavy_import() -> None:
    heavy = "{'torch', 'mlflow', 'transformers', 'vllm', 'openai', 'httpx'}"
    code = f"import sys; from deploy.cli import app; app(['--help'], standalone_mode=False); assert not {heavy} & set(sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "canary" in done.stdout


@pytest.mark.parametrize(
    "verb", ["up", "down", "status", "doctor", "chat", "rate", "versions", "canary", "bootstrap"]
)
def test_every_verb_has_help(verb: str) -> None:
    assert RUNNER.invoke(app, [verb, "--help"]).exit_code == 0


def test_an_unknown_profile_is_bad_input_and_names_the_right_ones() -> None:
    done = RUNNER.invoke(app, ["up", "--profile", "dsek"])

    assert done.exit_code == 2
    assert "no profile 'dsek'; there are desk" in done.stderr


def test_a_wrong_setting_is_bad_input_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_PORT", "eighty")

    done = RUNNER.invoke(app, ["status"])

    assert done.exit_code == 2
    assert "SERVING_PORT" in done.stderr


def test_a_misspelt_key_of_the_agent_file_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "agent.yaml"
    page.write_text("agent: a\nmodel: {path: m}\nsystem: s\ncanray: {}\n")
    monkeypatch.setenv("RATCHET_AGENT", str(page))

    done = RUNNER.invoke(app, ["up"])

    assert done.exit_code == 2
    assert "canray: unknown key; did you mean 'canary'?" in done.stderr


def test_without_a_stack_verbs_say_so() -> None:
    assert RUNNER.invoke(app, ["down"]).stdout == "nothing was running\n"
    assert RUNNER.invoke(app, ["status"]).exit_code == 3
    done = RUNNER.invoke(app, ["canary", "list"])
    assert done.exit_code == 3
    assert "ratchet up" in done.stderr


def test_a_stack_that_does_not_answer_is_exit_3(key: str) -> None:
    done = RUNNER.invoke(app, ["versions"])

    assert done.exit_code == 3
    assert f"nothing answers at http://127.0.0.1:{deploy_port()}" in done.stderr


def test_a_folder_is_offered_by_path_and_anything_else_as_a_version(key: str, tmp_path: Path) -> None:
    reply = {"id": "cn_1", "version": "travel-desk-000002", "phase": "progressing"}
    with answering(deploy_port(), 200, reply) as asked:
        done = RUNNER.invoke(app, ["canary", "offer", str(tmp_path)])
        RUNNER.invoke(app, ["canary", "offer", "travel-desk-000002"])

    assert done.stdout == "cn_1 travel-desk-000002 progressing\n"
    assert asked == [
        ("POST", "/v1/canaries", "Bearer sk-test", {"path": str(tmp_path)}),
        ("POST", "/v1/canaries", "Bearer sk-test", {"version": "travel-desk-000002"}),
    ]


def test_an_answer_that_takes_too_long_is_not_called_an_absent_stack() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CallError, match=r"took this and has not answered for 0\.2 s") as fault:
            call("POST", f"{address}/v1/canaries", key="sk-test", timeout_s=0.2)

    assert fault.value.code == 1
    assert OFFER_S == 300


@pytest.mark.parametrize("verb", ["promote", "pause", "resume", "abort", "retry", "undo"])
def test_every_steering_verb_is_a_request(key: str, verb: str) -> None:
    with answering(deploy_port(), 200, {"id": "cn_1"}) as asked:
        done = RUNNER.invoke(app, ["canary", verb, "cn_1", "--json"])

    assert json.loads(done.stdout) == {"id": "cn_1"}
    assert asked[0][:2] == ("POST", f"/v1/canaries/cn_1/{verb}")


def test_a_refusal_keeps_the_servers_words_and_field(key: str) -> None:
    error = {
        "error": {"message": "no such canary", "type": "invalid_request_error", "param": "id", "code": None}
    }
    with answering(deploy_port(), 404, error):
        done = RUNNER.invoke(app, ["canary", "abort", "cn_9"])

    assert done.exit_code == 2
    assert "404 id: no such canary" in done.stderr


@pytest.mark.parametrize(("said", "sent"), [("good", True), ("bad", False), ("0.5", 0.5)])
def test_a_rating_is_sent_as_what_was_meant(key: str, said: str, sent: object) -> None:
    from deploy.stack.plan import StackSettings

    with answering(StackSettings().serving_port, 202, {"id": "fb_1", "status": "new"}) as asked:
        done = RUNNER.invoke(app, ["rate", "chatcmpl-1", said])

    assert done.stdout == "fb_1 new\n"
    assert asked[0][1] == "/v1/feedback"
    assert asked[0][3] == {"response_id": "chatcmpl-1", "name": "user_rating", "value": sent}


def test_a_rating_that_means_nothing_is_bad_input(key: str) -> None:
    done = RUNNER.invoke(app, ["rate", "chatcmpl-1", "meh"])

    assert done.exit_code == 2
    assert "'meh' is neither good, bad nor a number" in done.stderr


def test_doctor_lists_findings_as_json() -> None:
    done = RUNNER.invoke(app, ["doctor", "--json"])
    about = {finding["about"] for finding in json.loads(done.stdout)["findings"]}

    assert {"number format", "threads", "memory", "model", "Java", "Kafka"} <= about


def test_a_table_leaves_out_what_nobody_has() -> None:
    assert table([{"id": "a", "x": None}, {"id": "bbb"}], ("id", "x")) == "id\na\nbbb"
