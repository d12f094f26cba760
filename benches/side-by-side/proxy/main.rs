//! Compares the proxy with mitmproxy: intercepted requests per second, and added latency.
//!
//! Both hold an allowlist, set the same header and look for tokens in what goes out; the proxy does more of that,
//! and has a turn with its detectors off. Each gets the same load in turn, on the same machine, from the same generator, against the same site. The ratio counts, not the numbers:
//! generator and site share the cores with the proxy, which costs the faster one more.
//!
//! The proxy is reached over its unix socket, as a bottle's guest reaches it, mitmproxy over loopback.
//!
//! `cargo bench -p bottle-egress --bench proxy`. mitmproxy comes from PyPI into `target/peers`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints its measurements")]

mod egress;
mod load;
mod mitmproxy;
mod peer;
mod site;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use egress::Detectors;
use load::Load;
use peer::Peer;
use site::Site;

/// The requested host.
const HOST: &str = "api.example.com";

/// Turns of each peer under each load.
const ROUNDS: usize = 5;

/// Length of a turn.
const TURN: Duration = Duration::from_secs(2);

/// Idle connections.
const IDLE: usize = 256;

/// Host names without a cached certificate.
const NAMES: usize = 500;

/// A body that is buffered on disk until its verdict.
const LARGE: usize = 200 << 20;

fn main() -> ExitCode {
    // The proxy runs as this program, like in the product.
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
    let proxy = egress::start(&site, Detectors::Default).await?;
    let blind = egress::start(&site, Detectors::Off).await?;
    let other = mitmproxy::start(&site).await?;
    let direct = Peer::direct(&site)?;
    println!("proxy resident idle, 100 routes: {:.1} MiB (goal 20)", proxy.resident_mib()?);
    println!("median of {ROUNDS} interleaved turns of {TURN:?}, 1 KiB of JSON each way, intercepted TLS\n");
    for (load, goal) in [(Load::KeptHttp1, "20 x"), (Load::KeptHttp2, "20 x"), (Load::NewConnections, "10 x")]
    {
        let (mut ours, mut unread, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(load.per_second(&proxy.peer, TURN).await?);
            unread.push(load.per_second(&blind.peer, TURN).await?);
            theirs.push(load.per_second(&other.peer, TURN).await?);
        }
        let [ours, unread, theirs] = [&mut ours, &mut unread, &mut theirs].map(|times| median(times));
        println!("{load}: proxy {ours:.0}/s, mitmproxy {theirs:.0}/s: {:.1} x (goal {goal})", ours / theirs);
        println!("  without detectors {unread:.0}/s: {:.2} x (goal 0.85)", ours / unread);
    }
    let (mut through, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        through.push(load::one_by_one(&proxy.peer, TURN / 2).await?);
        without.push(load::one_by_one(&direct, TURN / 2).await?);
    }
    let (through, without) = (median(&mut through) * 1e6, median(&mut without) * 1e6);
    println!(
        "one by one: {through:.0} us through the proxy, {without:.0} us direct: {:.0} us added (goal 150)",
        through - without
    );
    minting(&proxy.peer).await?;
    println!("proxy resident after all that: {:.1} MiB", proxy.resident_mib()?);
    memory(&site).await
}

/// Measures the time that a certificate for a new name adds to a connection.
async fn minting(proxy: &Peer) -> Result<()> {
    let tls = proxy.tls(b"http/1.1")?;
    let (mut new, mut known) = (Vec::new(), Vec::new());
    for number in 0..NAMES {
        for (host, times) in [(format!("name-{number}.example.com"), &mut new), (HOST.to_owned(), &mut known)]
        {
            let begun = Instant::now();
            drop(proxy.connect_to(&host, &tls).await?);
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    let (new, known) = (median(&mut new), median(&mut known));
    println!(
        "TLS with a new name: {new:.0} us, with a known one {known:.0} us: {:.0} us to mint (goal 100)",
        new - known
    );
    Ok(())
}

/// Measures the memory of idle connections and of a large body in a fresh proxy.
async fn memory(site: &Site) -> Result<()> {
    let proxy = egress::start(site, Detectors::Default).await?;
    // The one-time allocations of the first request.
    drop(load::idle(&proxy.peer, 1).await?);
    let before = proxy.resident_mib()?;
    let idle = load::idle(&proxy.peer, IDLE).await?;
    let each = (proxy.resident_mib()? - before) * 1024.0 / IDLE as f64;
    println!("{IDLE} idle connections: {each:.0} KiB each (goal 64)");
    drop(idle);
    proxy.reset_peak()?;
    let before = proxy.resident_mib()?;
    load::large(&proxy.peer, LARGE).await?;
    println!(
        "a body of {} MiB: {:.1} MiB before, {:.1} at the most (goal: flat)",
        LARGE >> 20,
        before,
        proxy.peak_mib()?
    );
    Ok(())
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
