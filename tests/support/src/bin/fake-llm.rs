//! `fake-llm`: the fake model API as a program, for trying an agent by hand.
//!
//! The program prints its address, the only key that it accepts and the path of its certificate, each on a line, and
//! runs until it is stopped.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bottle_test_support::fake_llm::{FakeLlm, Fault, FaultKind, Options, Script};
use clap::Parser;

/// A fake model server: plays a fixed script of shell commands in every wire format.
#[derive(Parser)]
struct Args {
    /// Port on 127.0.0.1; any free one when left out.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Where to write the certificate to trust.
    #[arg(long, default_value = "fake-llm-ca.pem")]
    ca: PathBuf,
    /// A shell command of the script; give it again for the next. Two harmless ones when left out.
    #[arg(long = "run")]
    commands: Vec<String>,
    /// Accept WebSockets for OpenAI's Responses.
    #[arg(long)]
    websockets: bool,
    /// A host in its certificate, in place of the usual ones; may be given again.
    #[arg(long = "host")]
    hosts: Vec<String>,
    /// Answer the first this many calls with `--fail-status`.
    #[arg(long, default_value_t = 0)]
    fail: usize,
    /// The status of those.
    #[arg(long, default_value_t = 500)]
    fail_status: u16,
}

fn main() -> Result<()> {
    let args = Args::parse();
    // The key may come from an environment variable, but not from the command line, which every user of the
    // machine can see.
    let mut options = Options { port: args.port, websockets: args.websockets, ..Options::default() };
    if let Ok(key) = std::env::var("FAKE_LLM_KEY") {
        options.key = key;
    }
    if !args.commands.is_empty() {
        options.script = Script { commands: args.commands, ..Script::default() };
    }
    if !args.hosts.is_empty() {
        options.hosts = args.hosts;
    }
    if args.fail > 0 {
        options.faults =
            vec![Fault { step: None, times: args.fail, kind: FaultKind::Status(args.fail_status) }];
    }
    let llm = FakeLlm::start(options)?;
    llm.write_ca(&args.ca)?;
    println!("address {}", llm.address());
    println!("key {}", llm.key());
    println!("ca {}", args.ca.display());
    let mut printed = 0;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let seen = llm.seen();
        for request in &seen[printed..] {
            let key = if request.key_accepted { "the key" } else { "a wrong key" };
            println!("{} {}{} with {key}: {}", request.method, request.host, request.path, request.status);
        }
        printed = seen.len();
        std::io::stdout().flush()?;
    }
}
