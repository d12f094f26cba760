"""Performs the tasks of the egress proxy: allows one host, injects its credential, denies all other hosts, and blocks
requests that contain tokens. It has fewer patterns than the egress proxy, and does not decode or normalise text."""

import os
import re

from mitmproxy import http

ALLOWED = {os.environ["BENCH_HOST"]}
SITE = ("127.0.0.1", int(os.environ["BENCH_SITE"]))


TOKENS = [
    re.compile(pattern)
    for pattern in (
        rb"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
        rb"\bAIza[\w-]{35}\b",
        rb"\bgh[pousr]_[0-9A-Za-z]{36}\b",
        rb"\bgithub_pat_\w{82}\b",
        rb"\bglpat-[\w-]{20}\b",
        rb"\bsk-ant-[\w-]{80,}\b",
        rb"\bsk-(?:proj-)?[0-9A-Za-z_-]{40,}\b",
        rb"\bxox[abeoprs]-[0-9A-Za-z-]{10,}\b",
        rb"\bhooks\.slack\.com/services/\w+/\w+/\w+",
        rb"\b[rs]k_live_[0-9A-Za-z]{24,}\b",
        rb"\bSG\.[\w-]{22}\.[\w-]{43}\b",
        rb"\bnpm_[0-9A-Za-z]{36}\b",
        rb"\bpypi-AgEIcHlwaS5vcmc[\w-]{50,}",
        rb"\bhf_[A-Za-z]{34}\b",
        rb"\bdop_v1_[0-9a-f]{64}\b",
        rb"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b",
        rb"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
        rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
        rb"\b(?:postgres|mysql|mongodb|redis)(?:\+\w+)?://[^:@/\s]+:[^@/\s]+@",
        rb"\b\d{8,10}:AA[\w-]{33}\b",
    )
]


class Proxy:
    def server_connect(self, data):
        data.server.address = SITE

    def request(self, flow):
        if flow.request.pretty_host not in ALLOWED:
            flow.response = http.Response.make(403, b"{}", {"content-type": "application/json"})
            return
        head = b"\n".join(value for _, value in flow.request.headers.fields) + flow.request.path.encode()
        if any(token.search(text) for text in (head, flow.request.content or b"") for token in TOKENS):
            flow.response = http.Response.make(403, b"{}", {"content-type": "application/json"})
            return
        flow.request.headers["authorization"] = "Bearer real-key"


addons = [Proxy()]
