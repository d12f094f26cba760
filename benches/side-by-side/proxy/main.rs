//! The door beside mitmproxy: intercepted requests per second, and what it adds to a request's time.
//!
//! Both hold the same allowlist of one host and set the same header; both get the same load in turn, on
//! the same machine, from the same generator, against the same site. The ratio counts, not the numbers:
//! generator and site share the cores with the proxy, which costs the faster one more.
//!
//! The door is reached over its unix socket, as a bottle's guest reaches it, mitmproxy over loopback.
//!
//! `cargo bench -p bottle-egress --bench proxy`. mitmproxy comes from PyPI into `target/peers`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints what it measured")]

mod door;
mod load;
mod mitmproxy;
mod peer;
mod site;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use load::Load;
use peer::Peer;

/// The host that everybody asks for.
const HOST: &str = "api.example.com";

/// Turns of each peer under each load.
const ROUNDS: usize = 5;

/// Length of a turn.
const TURN: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    // The door is this program again, as it is in the product.
    if std::env::args().nth(1).as_deref() == Some("__egress") {
        return bottle_egress::run();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(compare())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn compare() -> Result<()> {
    let site = site::start()?;
    let door = door::start(&site).await?;
    let other = mitmproxy::start(&site).await?;
    let direct = Peer::direct(&site)?;
    println!("door resident idle: {:.1} MiB", door.resident_mib()?);
    println!("median of {ROUNDS} interleaved turns of {TURN:?}, 1 KiB of JSON, intercepted TLS\n");
    for (load, goal) in [(Load::KeptHttp1, "20 x"), (Load::KeptHttp2, "20 x"), (Load::NewConnections, "10 x")]
    {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(load.per_second(&door.peer, TURN).await?);
            theirs.push(load.per_second(&other.peer, TURN).await?);
        }
        let (ours, theirs) = (median(&mut ours), median(&mut theirs));
        println!("{load}: door {ours:.0}/s, mitmproxy {theirs:.0}/s: {:.1} x (goal {goal})", ours / theirs);
    }
    let (mut through, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        through.push(load::one_by_one(&door.peer, TURN / 2).await?);
        without.push(load::one_by_one(&direct, TURN / 2).await?);
    }
    let (through, without) = (median(&mut through) * 1e6, median(&mut without) * 1e6);
    println!(
        "one by one: {through:.0} us through the door, {without:.0} us direct: {:.0} us added (goal 150)",
        through - without
    );
    println!("door resident after all that: {:.1} MiB", door.resident_mib()?);
    Ok(())
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
