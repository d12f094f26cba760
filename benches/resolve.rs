//! Measures how long it takes to resolve one agent and its bottles from a tree of 200 manifest files.
//!
//! The goal is 20 ms, because every start of a bottle resolves its manifests. The benchmark does not fail if the goal
//! is missed.
//!
//! Run the benchmark with `cargo bench --bench resolve`.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bottle_manifest::resolve::{Selection, explain, resolve};
use bottle_manifest::{Homes, Manifests};
use criterion::Criterion;

/// The number of files in the tree.
const FILES: usize = 200;
/// The time limit that one resolution should not exceed.
const GOAL: Duration = Duration::from_millis(20);

/// Creates a tree of [`FILES`] bottle manifests of a typical size. Each manifest except the first one extends one or
/// two others.
fn tree(home: &Path) -> Manifests {
    let bottles = home.join("bottles");
    fs::create_dir_all(&bottles).expect("directory");
    fs::create_dir_all(home.join("agents")).expect("directory");
    fs::write(home.join("agents/coder.md"), "---\nbottle: b199\n---\nWork.\n").expect("agent");
    for index in 0..FILES {
        fs::write(bottles.join(format!("b{index}.md")), bottle(index)).expect("bottle");
    }
    Manifests::new(Homes { bottle_home: home.to_owned(), user_home: home.to_owned(), cwd: home.join("work") })
}

fn bottle(index: usize) -> String {
    let mut text = String::from("---\n");
    let parents: Vec<String> = [index.checked_sub(1), index.checked_sub(7)]
        .into_iter()
        .flatten()
        .map(|parent| format!("b{parent}"))
        .collect();
    if !parents.is_empty() {
        writeln!(text, "extends: [{}]", parents.join(", ")).expect("text");
    }
    writeln!(text, "env:").expect("text");
    for variable in 0..8 {
        writeln!(text, "  VARIABLE_{variable}: value-{index}").expect("text");
    }
    writeln!(text, "egress:\n  routes:").expect("text");
    for route in 0..3 {
        writeln!(text, "    - host: host-{route}.b{index}.example.com").expect("text");
        writeln!(text, "      auth: {{scheme: Bearer, token_ref: TOKEN_{index}}}").expect("text");
        writeln!(text, "      matches:\n        - methods: [GET, HEAD]").expect("text");
        writeln!(
            text,
            "          paths: [{{type: prefix, value: /v{route}}}, {{type: exact, value: /health}}]"
        )
        .expect("text");
    }
    text.push_str("resources: {pids: 512}\n---\nA bottle of the tree.\n");
    text
}

fn main() {
    let home = tempfile::tempdir().expect("temporary directory");
    let manifests = tree(home.path());
    let selection = Selection { agent: "coder".parse().expect("name"), bottles: Vec::new() };
    let resolved = resolve(&selection, &manifests).expect("resolved");
    assert_eq!(resolved.manifest.layers.len(), FILES);

    let mut criterion = Criterion::default().configure_from_args();
    criterion.bench_function("resolve, 200 files", |bencher| {
        bencher.iter(|| resolve(&selection, &manifests).expect("resolved"));
    });
    criterion.bench_function("explain, 200 files", |bencher| bencher.iter(|| explain(&resolved.manifest)));
    criterion.final_summary();
    report(&selection, &manifests);
}

/// Prints the elapsed time and the CPU time of a resolution. The goal applies to the elapsed time, for which a user
/// waits. The CPU time does not grow on a busy machine.
#[allow(clippy::print_stdout)]
fn report(selection: &Selection, manifests: &Manifests) {
    let mut waited = Vec::new();
    let mut worked = Vec::new();
    for _ in 0..101 {
        let (start, cpu) = (Instant::now(), processor_time());
        let resolved = resolve(selection, manifests).expect("resolved");
        waited.push(start.elapsed());
        worked.push(processor_time().saturating_sub(cpu));
        drop(resolved);
    }
    let (waited, worked) = (median(waited), median(worked));
    let verdict = if waited <= GOAL { "reached" } else { "missed" };
    println!(
        "{FILES} files resolved in {waited:.2?}, {worked:.2?} of them on the processor (medians of 101)"
    );
    println!("goal {GOAL:?}: {verdict}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Returns the CPU time that this thread has used so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
