//! Compares the egress proxy with mitmproxy by the number of intercepted requests per second and by the added
//! latency.
//!
//! Both proxies apply an allowlist, inject the same header, and scan requests for tokens. The egress proxy scans for
//! more than mitmproxy, so it is also measured with its detectors off. The two proxies are measured in turns on the
//! same machine, with the same load generator and the same site. Only the ratio between the results is meaningful. The
//! generator and the site use the same CPU cores as the proxy. This slows down the faster proxy more than the slower
//! one.
//!
//! Clients connect to the egress proxy over its unix socket, as a bottle's guest does. They connect to mitmproxy over
//! the loopback interface.
//!
//! Run the benchmark with `cargo bench -p bottle-egress --bench proxy`. Arguments after `--` select some parts of the
//! benchmark. mitmproxy is installed from PyPI into `target/peers`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints what it measured")]

mod content;
mod egress;
mod load;
mod mitmproxy;
mod other_proxy;
mod peer;
mod rust_proxies;
mod site;
mod stages;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use content::Content;
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

/// The number of host names in the measurement of new certificates.
const NAMES: usize = 500;

/// The size in bytes of a request body that the egress proxy buffers on disk.
const LARGE: usize = 200 << 20;

fn main() -> ExitCode {
    // The benchmark starts its own program as the egress proxy, just as `bottle` starts its own program.
    if std::env::args().nth(1).as_deref() == Some("__egress") {
        if let Err(error) = stages::measure() {
            println!("{error:#}");
            return ExitCode::FAILURE;
        }
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

/// The parts of the benchmark.
const PARTS: [&str; 8] =
    ["throughput", "others", "latency", "stages", "websocket", "budget", "minting", "memory"];

async fn compare() -> Result<()> {
    // Skips the option `--bench`, which Cargo adds.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = wanted.iter().find(|part| !PARTS.contains(&part.as_str())) {
        bail!("there is no part {unknown:?}; there are {}", PARTS.join(", "));
    }
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == part);
    let site = site::start()?;
    let proxy = egress::start(&site, Detectors::Default, Budget::None).await?;
    println!("proxy resident idle, 100 routes: {:.1} MiB (goal 20)", proxy.resident_mib()?);
    if runs("throughput") {
        throughput(&site, &proxy.peer).await?;
    }
    if runs("others") {
        others(&site, &proxy.peer).await?;
    }
    if runs("latency") {
        latency(&site, &proxy.peer).await?;
    }
    if runs("stages") {
        stages(&site).await?;
    }
    if runs("websocket") {
        websocket(&site, &proxy.peer).await?;
    }
    if runs("budget") {
        gate(&site, &proxy.peer).await?;
    }
    if runs("minting") {
        minting(&proxy.peer).await?;
    }
    println!("proxy resident after all that: {:.1} MiB", proxy.resident_mib()?);
    if runs("memory") {
        memory(&site).await?;
    }
    Ok(())
}

/// Compares the requests per second of the egress proxy and of mitmproxy. Uses kept-alive connections with each kind of
/// content, and HTTP/2 and new connections with prose.
async fn throughput(site: &Site, proxy: &Peer) -> Result<()> {
    let undetecting = egress::start(site, Detectors::Off, Budget::None).await?;
    let other = mitmproxy::start(site).await?;
    println!("median of {ROUNDS} interleaved turns of {TURN:?}, 1 KiB of JSON each way, intercepted TLS\n");
    let kept = Content::ALL.map(|content| (Load::KeptHttp1, content, "25 x"));
    let others = [(Load::KeptHttp2, Content::Prose, "25 x"), (Load::NewConnections, Content::Prose, "20 x")];
    for (load, content, goal) in kept.into_iter().chain(others) {
        let (mut ours, mut unscanned, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(load.per_second(proxy, content, TURN).await?);
            unscanned.push(load.per_second(&undetecting.peer, content, TURN).await?);
            theirs.push(load.per_second(&other.peer, content, TURN).await?);
        }
        let [ours, unscanned, theirs] = [&mut ours, &mut unscanned, &mut theirs].map(|times| median(times));
        let name = content.name();
        println!(
            "{load}, {name}: proxy {ours:.0}/s, mitmproxy {theirs:.0}/s: {:.1} x (goal {goal}); without detectors \
             {unscanned:.0}/s: {:.2} x (goal 0.85)",
            ours / theirs,
            ours / unscanned
        );
        println!("ratio: proxy / mitmproxy, {load}, {name} {:.2}", ours / theirs);
        println!("ratio: detectors on / off, {load}, {name} {:.3}", ours / unscanned);
    }
    Ok(())
}

/// Compares the egress proxy with proxies that scan nothing, and with a connection without a proxy. The results are
/// requests per second.
async fn others(site: &Site, proxy: &Peer) -> Result<()> {
    let undetecting = egress::start(site, Detectors::Off, Budget::None).await?;
    let program = rust_proxies::build()?;
    let direct = Peer::direct(site)?;
    let mut others = Vec::new();
    for (name, connects) in rust_proxies::NAMES {
        others.push((name, rust_proxies::start(site, &program, name, connects).await?));
    }
    let content = Content::Prose;
    for load in [Load::KeptHttp1, Load::KeptHttp2, Load::NewConnections] {
        let mut peers = vec![
            ("no proxy", &direct, Vec::new()),
            ("ours", proxy, Vec::new()),
            ("ours without detectors", &undetecting.peer, Vec::new()),
        ];
        peers.extend(others.iter().map(|(name, other)| (*name, &other.peer, Vec::new())));
        for _ in 0..ROUNDS {
            for (_, peer, rates) in &mut peers {
                rates.push(load.per_second(peer, content, TURN).await?);
            }
        }
        let line = peers.iter_mut().map(|(name, _, rates)| format!("{name} {:.0}/s", median(rates)));
        println!("{load}, {}: {}", content.name(), line.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

/// Measures how much time the proxy adds to one request, with and without its detectors.
async fn latency(site: &Site, proxy: &Peer) -> Result<()> {
    let undetecting = egress::start(site, Detectors::Off, Budget::None).await?;
    let direct = Peer::direct(site)?;
    for content in [Content::Ordinary, Content::Prose, Content::Code] {
        let (mut through, mut unscanned, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            through.push(load::one_by_one(proxy, content, TURN / 2).await?);
            unscanned.push(load::one_by_one(&undetecting.peer, content, TURN / 2).await?);
            without.push(load::one_by_one(&direct, content, TURN / 2).await?);
        }
        let [through, unscanned, without] =
            [&mut through, &mut unscanned, &mut without].map(|times| median(times) * 1e6);
        println!(
            "one by one, {}: {through:.0} us through the proxy, {unscanned:.0} us without detectors, {without:.0} us \
             direct: {:.0} us added (goal 150)",
            content.name(),
            through - without
        );
        println!(
            "ratio: one request direct / through the proxy, {} {:.3}",
            content.name(),
            without / through
        );
    }
    Ok(())
}

/// Measures how long each stage of a request takes when no other request runs. The duration of a stage includes the
/// time until the stage gets a free thread.
async fn stages(site: &Site) -> Result<()> {
    for content in [Content::Ordinary, Content::Prose, Content::Code] {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("stages");
        let proxy = egress::start_measured(site, Detectors::Default, Budget::None, Some(&file)).await?;
        load::one_by_one(&proxy.peer, content, TURN).await?;
        println!("stages of a request, {}, medians:\n{}", content.name(), stages::read(&file)?);
    }
    Ok(())
}

/// Measures how much text the proxy relays over a WebSocket, with and without its detectors.
async fn websocket(site: &Site, proxy: &Peer) -> Result<()> {
    let undetecting = egress::start(site, Detectors::Off, Budget::None).await?;
    for content in [Content::Prose, Content::Code, Content::Base64] {
        let (mut scanned, mut unscanned) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            scanned.push(load::over_websocket(proxy, content, TURN / 2).await?);
            unscanned.push(load::over_websocket(&undetecting.peer, content, TURN / 2).await?);
        }
        let [scanned, unscanned] = [&mut scanned, &mut unscanned].map(|rates| median(rates));
        let name = content.name();
        println!(
            "WebSocket, {name}: {scanned:.1} MiB/s scanned (goal 60), {unscanned:.1} MiB/s without detectors"
        );
        println!("ratio: WebSocket detectors on / off, {name} {:.3}", scanned / unscanned);
    }
    Ok(())
}

/// Measures how much time a budget adds to a request to a model. The proxy has enough tokens for every request.
async fn gate(site: &Site, unlimited: &Peer) -> Result<()> {
    let limited = egress::start(site, Detectors::Default, Budget::Large).await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(load::one_by_one(&limited.peer, Content::Prose, TURN / 2).await?);
        without.push(load::one_by_one(unlimited, Content::Prose, TURN / 2).await?);
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
    // The first request makes allocations that later requests reuse, so it is sent before the measurement.
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
