//! Tests the daemon with the official Python client. The client runs in its legacy mode and in its current mode.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bottle_protocol::queue::Status;
use bottle_test_support::{python, skip};
use tokio::net::{TcpListener, UnixStream};
use tokio::process::Command;

use crate::scene::Scene;

/// A typical MCP client in Python. The client sets the server's name in the `Host` header, because the test machine
/// cannot resolve the server's name.
const CLIENT: &str = r#"
import asyncio, sys, httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main(url, mode):
    progress = []
    async def on_progress(done, total, message): progress.append(message)
    async with httpx2.AsyncClient(headers={"host": "supervise:9100"}, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            tools = await client.list_tools()
            print("tools", " ".join(tool.name for tool in tools.tools))
            routes = await client.call_tool("list-egress-routes", {})
            print("revision", routes.structured_content["revision"])
            asked = {"routes": [{"host": mode + ".example"}], "justification": "to see"}
            said = await client.call_tool("egress-allow", asked, progress_callback=on_progress)
            said = said.structured_content
            print("said", said["status"], said["notes"])
            again = await client.call_tool("check-proposal", {"id": said["id"]})
            print("again", again.structured_content["status"], len(progress) > 0)
            bad = {"routes": [{"host": "http://x/"}], "justification": "x"}
            bad = await client.call_tool("egress-allow", bad)
            print("error", bad.is_error, bad.content[0].text)
            try: await client.call_tool("egress-deny", {})
            except Exception as error: print("unknown", error)

asyncio.run(main(*sys.argv[1:]))
"#;

pub(crate) async fn serves() -> Result<()> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mcp");
    let found =
        tokio::task::spawn_blocking(move || python::with_packages(&directory, &["mcp==2.3.0"])).await?;
    let python = match found {
        Ok(python) => python,
        Err(why) => {
            skip::aloud("serves_the_official_python_client", &why);
            return Ok(());
        }
    };
    let scene = Scene::start_with_patience(45, std::time::Duration::from_millis(300), |question| {
        Scene::decided(question, Status::Approved, Some("because"), None)
    })
    .await?;
    let address = loopback(&scene.socket()).await?;
    for mode in ["legacy", "auto"] {
        let url = format!("http://{address}/mcp");
        let client = Command::new(&python).env_clear().args(["-c", CLIENT, &url, mode]).output().await?;
        let output = String::from_utf8_lossy(&client.stdout).into_owned();
        let errors = String::from_utf8_lossy(&client.stderr);
        ensure!(client.status.success(), "{mode}: {output}{errors}");
        for words in [
            "tools list-egress-routes egress-allow egress-block check-proposal\n",
            "revision 1\n",
            "said approved because\n",
            "again approved True\n",
            "error True routes: ",
            "unknown ",
        ] {
            ensure!(output.contains(words), "{mode}: no {words:?} in {output}{errors}");
        }
    }
    ensure!(scene.asked().len() == 2, "{:?}", scene.asked());
    Ok(())
}

/// Forwards a TCP port of the loopback address to a unix socket. Returns the address with the port.
async fn loopback(socket: &Path) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, socket) = (listener.local_addr()?, socket.to_owned());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut server = UnixStream::connect(&socket).await.context("the daemon's socket")?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await.context("copied")
            });
        }
    });
    Ok(address)
}
