"""The same job as the door's: one allowed host, its credential set, everything else refused."""

import os

from mitmproxy import http

ALLOWED = {os.environ["BENCH_HOST"]}
SITE = ("127.0.0.1", int(os.environ["BENCH_SITE"]))


class Door:
    def server_connect(self, data):
        data.server.address = SITE

    def request(self, flow):
        if flow.request.pretty_host not in ALLOWED:
            flow.response = http.Response.make(403, b"{}", {"content-type": "application/json"})
            return
        flow.request.headers["authorization"] = "Bearer real-key"


addons = [Door()]
