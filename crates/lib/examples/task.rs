//! Starts a bottle with a copy of the working directory, runs a command in the bottle, shows a file, and pulls the
//! work.
//!
//! ```sh
//! cargo run -p bottle-lib --example task -- "$(command -v bottle)" AGENT COMMAND FILE
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

use std::time::Duration;

use bottle_host::Host;
use bottle_lib::bottle::Bottle;
use bottle_lib::failure::Failure;
use bottle_lib::launch::start::{CopyIn, StartOrder};
use bottle_lib::report::FileDocument;
use bottle_lib::work::Wanted;
use bottle_protocol::session::files::{FilePath, FileRequest, Read};
use bottle_protocol::session::guest::Process;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, agent, command, file] = &arguments[..] else {
        return Err("usage: task PROGRAM AGENT COMMAND FILE".to_owned());
    };
    let host = Host::of_this_process().map_err(|error| error.to_string())?;
    // The background processes of a bottle, such as its keeper, run the program `bottle` and not this example.
    let host = Host { program: program.into(), ..host };
    let agent = agent.parse().map_err(|error| format!("{agent}: {error}"))?;
    run(&host, StartOrder::new(agent), command, file).await.map_err(|failure| failure.message)
}

async fn run(host: &Host, mut order: StartOrder, command: &str, file: &str) -> Result<(), Failure> {
    order.workspace.mode = Some(CopyIn::Tracked);
    let bottle = Bottle::start(host, order, &|notice| eprintln!("{notice:?}")).await?;
    let worked = work(&bottle, command, file).await;
    // If the work was not pulled, the bottle's files are kept, and `bottle list` shows the bottle.
    bottle.stop(Duration::from_secs(10)).await?;
    worked
}

async fn work(bottle: &Bottle<'_>, command: &str, file: &str) -> Result<(), Failure> {
    let argv = ["sh", "-c", command].map(str::to_owned).to_vec();
    let process = Process { argv, ..Process::default() };
    let ran = bottle.exec(process, None, Duration::from_secs(600)).await?;
    println!("exit {}: {}", ran.exit, ran.stdout.text.trim_end());
    let read =
        FileRequest::Read(Read { path: FilePath::from(file), offset: 0, max: 64 << 10, redact: false });
    if let FileDocument::Content(content) = bottle.files().document(read, tokio::io::empty()).await? {
        println!("{file}: {}", content.text.unwrap_or_default().trim_end());
    }
    let pulled = bottle.pull(Wanted { uncommitted: true, ..Wanted::default() }).await?;
    for (_, pulled) in pulled.pulled() {
        println!("{}: {} commits", pulled.fetched.branch, pulled.fetched.commits);
    }
    Ok(())
}
