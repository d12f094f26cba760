"""Lets mini-swe-agent run its commands in the bottle of a task, through `bottle mcp` and nothing else.

mini-swe-agent has one tool, which runs a command in its environment, and no MCP client. This environment is a client of
the MCP server with the one tool call that it needs. Use it with

    mini --environment-class bottle_environment.BottleEnvironment

with BOTTLE (the program) and BOTTLE_TASK (the id of the task) in the environment.
"""

import json
import os
import subprocess

from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.openrouter_model import OpenRouterModel


class McpClient:
    """A client of an MCP server on standard input and output."""

    def __init__(self, argv):
        self.server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.last = 0
        info = {"name": "mini-swe-agent", "version": "2"}
        self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.server.stdin.flush()

    def ask(self, method, params):
        self.last += 1
        self.send({"id": self.last, "method": method, "params": params})
        for line in self.server.stdout:
            message = json.loads(line)
            if message.get("id") == self.last:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]
        raise RuntimeError("the MCP server ended")


class BottleEnvironment(LocalEnvironment):
    """Runs each command with the tool `env_run`. The rest is as in the local environment."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.client = McpClient([os.environ["BOTTLE"], "mcp"])

    def execute(self, action, cwd="", *, timeout=None):
        call = {
            "task": os.environ["BOTTLE_TASK"],
            "command": action.get("command", ""),
            "timeout": timeout or self.config.timeout,
            "merge": True,
        }
        if cwd:
            call["workdir"] = cwd
        result = self.client.ask("tools/call", {"name": "env_run", "arguments": call})
        if result.get("isError"):
            output = {"output": "", "returncode": -1, "exception_info": result["content"][0]["text"]}
        else:
            ran = result["structuredContent"]
            output = {"output": ran["stdout"]["text"], "returncode": ran["exit"], "exception_info": ""}
        self._check_finished(output)
        return output


class LocalModel(OpenRouterModel):
    """A model with OpenRouter's API at the URL in MODEL_URL."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._api_url = os.environ["MODEL_URL"]
