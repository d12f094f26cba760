//! Compares the egress proxy with mitmproxy by the number of intercepted requests per second and by the added
//! latency.
//!
//! Both apply an allowlist, inject the same header, and scan requests for tokens. The egress proxy scans for
//! more than mitmproxy, so it is also measured with its detectors off. The two proxies are measured in turns
//! on the same machine, with the same load generator and the same site. Only the ratio between the results is
//! meaningful. The generator and the site use the same cores as the proxy, which slows down the faster proxy
//! more.
//!
//! Clients connect to the egress proxy over its unix socket, as a bottle's guest does, and to mitmproxy over
//! the loopback interface.
//!
//! Run it with `cargo bench -p bottle-egress --bench proxy`. mitmproxy is installed from PyPI into
//! `target/peers`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints what it measured")]

mod egress;
mod load;
mod mitmproxy;
mod peer;
mod site;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use egress::{Budget, Detectors};
use load::Load;
use peer::Peer;
use site::Site;

/// The host to which all requests are sent.
const HOST: &str = "api.example.com";

/// The number of measurements of each proxy under each load.
const ROUNDS: usize = 5;

/// The duration of one measurement.
const TURN: Duration = Duration::from_secs(2);

/// The number of idle connections.
const IDLE: usize = 256;

/// The number of host names for which no certificate is cached.
const NAMES: usize = 500;

/// The size in bytes of a request body that the egress proxy buffers on disk.
const LARGE: usize = 200 << 20;

fn main() -> ExitCode {
    // The egress proxy runs as this program, just as it runs as `bottle` in the product.
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
    let proxy = egress::start(&site, Detectors::Default, Budget::None).await?;
    let undetecting = egress::start(&site, Detectors::Off, Budget::None).await?;
    let other = mitmproxy::start(&site).await?;
    let direct = Peer::direct(&site)?;
    println!("proxy resident idle, 100 routes: {:.1} MiB (goal 20)", proxy.resident_mib()?);
    println!(
        "median of {ROUNDS} interleaved turns of {TURN:?}, 1 KiB of JSON each way, a model's response, intercepted TLS\n"
    );
    for (load, goal) in [(Load::KeptHttp1, "20 x"), (Load::KeptHttp2, "20 x"), (Load::NewConnections, "10 x")]
    {
        let (mut ours, mut unscanned, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(load.per_second(&proxy.peer, TURN).await?);
            unscanned.push(load.per_second(&undetecting.peer, TURN).await?);
            theirs.push(load.per_second(&other.peer, TURN).await?);
        }
        let [ours, unscanned, theirs] = [&mut ours, &mut unscanned, &mut theirs].map(|times| median(times));
        println!("{load}: proxy {ours:.0}/s, mitmproxy {theirs:.0}/s: {:.1} x (goal {goal})", ours / theirs);
        println!("  without detectors {unscanned:.0}/s: {:.2} x (goal 0.85)", ours / unscanned);
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
    gate(&site, &proxy.peer).await?;
    minting(&proxy.peer).await?;
    println!("proxy resident after all that: {:.1} MiB", proxy.resident_mib()?);
    memory(&site).await
}

/// Measures how much time a budget adds to a request to a model for which the proxy has enough tokens.
async fn gate(site: &Site, unlimited: &Peer) -> Result<()> {
    let limited = egress::start(site, Detectors::Default, Budget::Large).await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(load::one_by_one(&limited.peer, TURN / 2).await?);
        without.push(load::one_by_one(unlimited, TURN / 2).await?);
    }
    let (with, without) = (median(&mut with) * 1e6, median(&mut without) * 1e6);
    println!(
        "a budget: {with:.0} us, without one {without:.0} us: {:.0} us added (goal 100)",
        with - without
    );
    Ok(())
}

/// Measures how much time creating a certificate adds to a connection.
async fn minting(proxy: &Peer) -> Result<()> {
    let tls = proxy.tls(b"http/1.1")?;
    let (mut new, mut cached) = (Vec::new(), Vec::new());
    for number in 0..NAMES {
        for (host, times) in
            [(format!("name-{number}.example.com"), &mut new), (HOST.to_owned(), &mut cached)]
        {
            let begun = Instant::now();
            drop(proxy.connect_to(&host, &tls).await?);
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    let (new, cached) = (median(&mut new), median(&mut cached));
    println!(
        "TLS with a new name: {new:.0} us, with a cached one {cached:.0} us: {:.0} us to mint (goal 100)",
        new - cached
    );
    Ok(())
}

/// Measures the memory that idle connections and a large request body need, in a new proxy process.
async fn memory(site: &Site) -> Result<()> {
    let proxy = egress::start(site, Detectors::Default, Budget::None).await?;
    // The first request makes allocations that later requests reuse.
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
