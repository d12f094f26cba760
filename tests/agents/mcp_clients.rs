//! Tests that the official MCP clients for TypeScript and Python drive a bottle, and that the official conformance
//! suite accepts `bottle mcp`.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::mcp_server::{McpServer, token};
use bottle_test_support::{node, python, skip};

/// The program of a TypeScript client. It starts a bottle, works in the bottle, and stops the bottle. The arguments of
/// the program are `stdio` and the program `bottle`, or `http`, the URL and the token.
const TYPESCRIPT: &str = r"
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [kind, target, token] = process.argv.slice(2);
const headers = { authorization: `Bearer ${token}` };
const transport = kind === 'stdio'
  ? new StdioClientTransport({ command: target, args: ['mcp'], env: process.env })
  : new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } });
const client = new Client({ name: 'test', version: '1' });
await client.connect(transport);
const call = async (name, args) => await client.callTool({ name, arguments: args });
const bottle = kind;
const { tools } = await client.listTools();
console.log('tools', tools.filter(tool => ['bottle_start', 'terminal'].includes(tool.name)).length);
await call('bottle_start', { agent: 'nap', label: bottle });
const ran = await call('terminal', { bottle, command: 'echo $((40 + 2)) > result; cat result' });
console.log('ran', ran.structuredContent.stdout.text.trim());
const { contents } = await client.readResource({ uri: `bottle://${bottle}/files/result` });
console.log('read', contents[0].text.trim());
const wrong = await call('terminal', { bottle });
console.log('wrong', wrong.isError, wrong.content[0].text);
await call('nothing', {}).catch(error => console.log('unknown', error.message));
await call('bottle_stop', { bottle });
await client.close();
";

/// The program of [`TYPESCRIPT`] in Python.
const PYTHON: &str = r#"
import asyncio, os, sys, httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

async def work(transport, bottle):
    async with Client(transport) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        print("tools", len([name for name in tools if name in ("bottle_start", "terminal")]))
        await client.call_tool("bottle_start", {"agent": "nap", "label": bottle})
        command = {"bottle": bottle, "command": "echo $((40 + 2)) > result; cat result"}
        ran = await client.call_tool("terminal", command)
        print("ran", ran.structured_content["stdout"]["text"].strip())
        read = await client.read_resource(f"bottle://{bottle}/files/result")
        print("read", read.contents[0].text.strip())
        wrong = await client.call_tool("terminal", {"bottle": bottle})
        print("wrong", str(wrong.is_error).lower(), wrong.content[0].text)
        try: await client.call_tool("nothing", {})
        except Exception as error: print("unknown", error)
        await client.call_tool("bottle_stop", {"bottle": bottle})

async def main(kind, target, token=""):
    if kind == "stdio":
        server = StdioServerParameters(command=target, args=["mcp"], env=dict(os.environ))
        await work(stdio_client(server), kind)
        return
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        await work(streamable_http_client(target, http_client=http), kind)

asyncio.run(main(*sys.argv[1:]))
"#;

/// The scenarios of the conformance suite for features that `bottle mcp` does not have: tools, prompts and resources
/// with the names of the suite, and log levels, completions, subscriptions, questions to the client and resumed
/// streams.
const NOT_OFFERED: &str = "server:
  - logging-set-level
  - completion-complete
  - tools-call-simple-text
  - tools-call-image
  - tools-call-audio
  - tools-call-embedded-resource
  - tools-call-mixed-content
  - tools-call-with-logging
  - tools-call-error
  - tools-call-with-progress
  - tools-call-sampling
  - tools-call-elicitation
  - json-schema-2020-12
  - elicitation-sep1034-defaults
  - elicitation-sep1330-enums
  - server-sse-polling
  - server-sse-multiple-streams
  - resources-read-text
  - resources-read-binary
  - resources-templates-read
  - resources-subscribe
  - resources-unsubscribe
  - prompts-list
  - prompts-get-simple
  - prompts-get-with-args
  - prompts-get-embedded-resource
  - prompts-get-with-image
";

/// The time limit for a connection to the server.
const SOON: Duration = Duration::from_secs(10);

/// The scenarios of the conformance suite that must pass.
const PASSED: [&str; 5] =
    ["server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"];

/// A home with an agent that sleeps in a bottle on the backend `linux`, an HTTP server, and the token of the server.
fn scene() -> Result<(TestHome, McpServer, String)> {
    let mut home = TestHome::new()?;
    let command = "agent_provider: {template: command, command: [sleep, '600']}";
    home.bottle("nap", &format!("---\nbackend: linux\n{command}\n---\n"))?;
    home.agent("nap", "---\nbottle: nap\n---\n")?;
    let (token, entry) = token(&home, "test")?;
    home.write("project/tokens.yml", &entry)?;
    let server = McpServer::start(&home)?;
    Ok((home, server, token))
}

/// A directory for the packages of a test.
fn packages(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs a client on standard input and output, and over HTTP. `client` is the client's command without the arguments.
fn drives(client: &[&str]) -> Result<()> {
    let (home, server, token) = scene()?;
    let bottle = home.program([""])?.command();
    let program = bottle.get_program().to_string_lossy().into_owned();
    let url = format!("http://{}/mcp", server.address);
    for arguments in [vec!["stdio", &program], vec!["http", &url, &token]] {
        let mut command = Command::new(client[0]);
        command.args(&client[1..]).args(&arguments).env_clear().stdin(Stdio::null());
        command.envs(bottle.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(home.project());
        let ended = command.output()?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let errors = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{arguments:?}: {said}{errors}");
        for words in ["tools 2\n", "ran 42\n", "read 42\n", "wrong true ", "unknown "] {
            ensure!(said.contains(words), "{arguments:?}: no {words:?} in {said}{errors}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "fetches the SDK for TypeScript once: 30 MB"]
fn real_typescript_client_drives_a_bottle() -> Result<()> {
    let directory = packages("mcp-typescript");
    if let Err(why) = node::with_packages(&directory, &["@modelcontextprotocol/sdk@1.32.2"]) {
        skip::aloud("the TypeScript client", &why);
        return Ok(());
    }
    let client = directory.join("client.mjs");
    fs::write(&client, TYPESCRIPT)?;
    drives(&["/usr/bin/node", &client.display().to_string()])
}

#[test]
#[ignore = "fetches the SDK for Python once: 69 MB"]
fn real_python_client_drives_a_bottle() -> Result<()> {
    let python = match python::with_packages(&packages("mcp-python"), &["mcp==2.3.0"]) {
        Ok(python) => python,
        Err(why) => {
            skip::aloud("the Python client", &why);
            return Ok(());
        }
    };
    drives(&[&python.display().to_string(), "-c", PYTHON])
}

#[test]
#[ignore = "fetches the conformance suite and a Node for it once: 236 MB"]
fn real_conformance_suite_accepts_the_server() -> Result<()> {
    let directory = packages("mcp-conformance");
    // The conformance suite needs Node 22.
    let newer_node = format!("{}@22.23.3", node::NODE);
    let wanted = ["@modelcontextprotocol/conformance@0.1.16", &newer_node];
    if let Err(why) = node::with_packages(&directory, &wanted) {
        skip::aloud("the conformance suite", &why);
        return Ok(());
    }
    fs::write(directory.join("not-offered.yml"), NOT_OFFERED)?;
    let (_home, server, token) = scene()?;
    let address = with_token(&server.address, &token)?;
    let ended = Command::new(node::program(&directory))
        .current_dir(&directory)
        .args(["node_modules/@modelcontextprotocol/conformance/dist/index.js", "server", "--suite", "all"])
        .args(["--expected-failures", "not-offered.yml", "--url", &format!("http://{address}/mcp")])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    ensure!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    for scenario in PASSED {
        ensure!(said.contains(&format!("✓ {scenario}: ")), "{scenario} did not pass: {said}");
    }
    Ok(())
}

/// Starts a proxy in front of a server, for clients that cannot send a token.
fn with_token(server: &str, token: &str) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let own = listener.local_addr()?;
    let (server, token) = (server.to_owned(), token.to_owned());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (server, token) = (server.clone(), token.clone());
            thread::spawn(move || forward(client, &own.to_string(), &server, &token));
        }
    });
    Ok(own)
}

/// Forwards one request with the token, and returns the response to the client. In the forwarded request, `Host` and
/// `Origin` name the server.
fn forward(mut client: TcpStream, own: &str, server: &str, token: &str) -> Result<()> {
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    let end = loop {
        let length = client.read(&mut part)?;
        ensure!(length > 0, "the request ends early");
        request.extend_from_slice(&part[..length]);
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&request[..end]).replace(own, server);
    let lines = head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let head = lines.collect::<Vec<_>>().join("\r\n");
    let mut upstream = TcpStream::connect_timeout(&server.parse()?, SOON).context("the server")?;
    write!(upstream, "{head}\r\nauthorization: Bearer {token}\r\nconnection: close")?;
    upstream.write_all(&request[end..])?;
    let (mut rest, mut body) = (client.try_clone()?, upstream.try_clone()?);
    thread::spawn(move || io::copy(&mut rest, &mut body));
    io::copy(&mut upstream, &mut client)?;
    Ok(client.shutdown(Shutdown::Both)?)
}
