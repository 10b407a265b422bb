"""A vLLM server on this machine, and a client that keeps many requests outstanding."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import httpx
import psutil

from benchmarks.suite.arms.base import EngineSetting, Measured, in_row_order
from benchmarks.suite.arms.sampling import sampling_kwargs
from benchmarks.suite.job import Job

OUTSTANDING = 256
LOAD_LIMIT_SECONDS = 900.0
METRICS_SECONDS = 1.0
MODEL = "model"


class OfflineLoop:
    """``offline-loop``: ``/v1/completions`` over loopback, rows in the table's order.

    The server's gauge of running sequences is read once a second. The mean over these samples is not quite the same as
    the mean over steps of the other arms.
    """

    def __init__(self, name: str, setting: EngineSetting) -> None:
        self._setting = setting
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def open(self) -> float:
        """Start the server and wait until it is healthy."""
        started = time.monotonic()
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--model", self._setting.model, "--served-model-name", MODEL]
        command += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
        self._process = subprocess.Popen([*command, *command_line(self._setting.engine_args)])
        with httpx.Client(trust_env=False) as client:
            while True:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server ended with status {self._process.returncode} while loading")
                if time.monotonic() - started > LOAD_LIMIT_SECONDS:
                    raise RuntimeError(f"the server was not ready after {LOAD_LIMIT_SECONDS:.0f} s")
                try:
                    if client.get(f"{self._url}/health").status_code == 200:
                        return time.monotonic() - started
                except httpx.TransportError:
                    pass
                time.sleep(0.2)

    def run(self, job: Job) -> Measured:
        """Send every row and wait for every answer."""
        return asyncio.run(self._run(job))

    def close(self) -> None:
        """Stop the server and its processes."""
        if self._process is None or self._process.poll() is not None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for child in children:
            if child.is_running():
                child.kill()

    async def _run(self, job: Job) -> Measured:
        limits = httpx.Limits(max_connections=OUTSTANDING, max_keepalive_connections=OUTSTANDING)
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
            running: list[float] = []
            sampler = asyncio.create_task(self._sample_running(client, running))
            started = time.monotonic()
            outstanding = asyncio.Semaphore(OUTSTANDING)

            async def answer(row: int, prompt: str, limit: int) -> tuple[int, str, Mapping[str, Any]]:
                async with outstanding:
                    response = await client.post(f"{self._url}/v1/completions", json=_body(job, prompt, limit))
                response.raise_for_status()
                found = response.json()
                return row, found["choices"][0]["text"], found["usage"]

            answers = await asyncio.gather(*map(answer, range(job.rows), job.prompts, job.limits()))
            texts = in_row_order([row for row, _, _ in answers], [text for _, text, _ in answers], job.rows)
            seconds = time.monotonic() - started
            sampler.cancel()
        prompt_tokens = sum(usage["prompt_tokens"] for _, _, usage in answers)
        cached = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for _, _, usage in answers)
        return Measured(seconds, texts, prompt_tokens, cached, sum(running) / len(running) if running else None)

    async def _sample_running(self, client: httpx.AsyncClient, running: list[float]) -> None:
        while True:
            await asyncio.sleep(METRICS_SECONDS)
            text = (await client.get(f"{self._url}/metrics")).text
            running += [float(found) for found in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.M)]


def command_line(engine_args: Mapping[str, Any]) -> list[str]:
    """Return engine arguments as options of vLLM's server."""
    options: list[str] = []
    for name, value in engine_args.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return options


def _body(job: Job, prompt: str, limit: int) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, **sampling_kwargs(job, limit)}
    if job.schema is not None:
        body["structured_outputs"] = {"json": job.schema}
    return body


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
