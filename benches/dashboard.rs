//! Measures how long `bottle dashboard` takes from the start of its process until it shows its first screen, with many
//! bottles and many usage records.
//!
//! `cargo bench --bench dashboard` prints the median. The goal is 150 ms with 1,000,000 records and 100 bottles. The
//! benchmark prints whether the goal is reached, and does not fail if the goal is missed. `BOTTLE_BENCH_RECORDS` sets
//! the number of records.
#![allow(missing_docs, clippy::print_stdout)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use bottle_keeper::ledger::Ledger;
use bottle_test_support::home::TestHome;
use jiff::Timestamp;

/// The number of bottles.
const BOTTLES: u64 = 100;

const GOAL: Duration = Duration::from_millis(150);

/// How often the dashboard is opened.
const ROUNDS: usize = 11;

/// The milliseconds between two responses to a working agent.
const PAUSE: u64 = 20_000;
/// The number of responses to an agent in a day.
const PER_DAY: u64 = 1440;

/// Milliseconds in a day.
const DAY: u64 = 24 * 60 * 60 * 1000;

fn main() {
    let records = std::env::var("BOTTLE_BENCH_RECORDS").ok().and_then(|count| count.parse().ok());
    let records: u64 = records.unwrap_or(1_000_000);
    let home = TestHome::new().expect("home");
    home.write(
        "home/.bottle/settings.yml",
        "budget:\n  claude: {day: 2000000000, month: 20000000000}\n  ceiling: {claude: 900000000000}\n",
    )
    .expect("settings");
    let _locks: Vec<File> = (0..BOTTLES).map(|number| running(&home, number)).collect();
    write_usage(&home.bottle_home(), records);
    let start = Instant::now();
    let mut ledger = Ledger::open(&home.bottle_home()).expect("ledger");
    let added = ledger.ingest(&home.bottle_home()).expect("ingest").added;
    println!("{added} records of {BOTTLES} bottles, ingested in {:.1?}", start.elapsed());
    drop(ledger);
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| opened(&home)).collect();
    times.sort();
    let (median, verdict) = (times[ROUNDS / 2], if times[ROUNDS / 2] <= GOAL { "reached" } else { "missed" });
    println!(
        "first screen after {median:.0?} (median of {ROUNDS}; from {:.0?} to {:.0?})",
        times[0],
        times[ROUNDS - 1]
    );
    println!("goal {GOAL:?}: {verdict}");
}

/// Measures the time from the start of the dashboard until it shows a bottle and the used part of the bottle's budget.
/// Then quits the dashboard.
fn opened(home: &TestHome) -> Duration {
    let start = Instant::now();
    let mut pty = home.on_terminal(&["dashboard"], 40, 120).expect("a terminal");
    pty.wait_until("a bottle", |screen| screen.contains("bottle-00") && screen.contains('%'))
        .expect("a screen");
    let took = start.elapsed();
    pty.type_keys("q").expect("quits");
    pty.wait_exit().expect("an end");
    took
}

fn slug(number: u64) -> String {
    format!("bottle-{number:02}")
}

/// Writes the record of a bottle that runs. The returned file holds the lock that the keeper of a running bottle holds.
fn running(home: &TestHome, number: u64) -> File {
    let slug = slug(number);
    let now = Timestamp::now();
    let record = serde_json::json!({
        "schema": 1, "slug": slug, "label": null, "color": null, "agent": "worker", "bottles": ["dev"],
        "lineage": ["base", "dev"], "template": "claude", "run": format!("run-{number}"), "cwd": "/", "copied_cwd": false,
        "backend": "linux", "mode": "detached", "status": "running", "started_at": now, "keeper": null, "resources": [],
        "budget": [
            {"scope": "bottle:dev", "key": "claude", "window": "day", "tokens": 1_000_000_000, "origin": "dev.md:3"},
            {"scope": "bottle:dev", "key": "claude", "window": "run", "tokens": 1_000_000_000, "origin": "dev.md:3"},
        ],
        "manifest_hash": "0",
    });
    let directory = format!("home/.bottle/state/{slug}");
    home.write(&format!("{directory}/metadata.json"), &record.to_string()).expect("record");
    let lock = home.write(&format!("{directory}/lock"), "").expect("lock");
    let lock = File::open(lock).expect("lock");
    lock.lock().expect("locked");
    lock
}

fn write_usage(home: &Path, records: u64) {
    fs::create_dir_all(home.join("usage")).expect("directory");
    let end = u64::try_from(Timestamp::now().as_millisecond()).expect("a time");
    for bottle in 0..BOTTLES {
        let of_bottle = records / BOTTLES + u64::from(bottle < records % BOTTLES);
        let mut text = String::new();
        for number in 0..of_bottle {
            // An agent works for eight hours a day and uses two models.
            let at = end - number / PER_DAY * DAY - number % PER_DAY * PAUSE;
            let time = Timestamp::from_millisecond(i64::try_from(at).expect("a time")).expect("a time");
            let model = if number.is_multiple_of(5) { "claude-haiku-4-5" } else { "claude-sonnet-4-5" };
            writeln!(
                text,
                "{{\"agent\":\"worker\",\"run\":\"run-{bottle}\",\"template\":\"claude\",\"bottles\":[\"dev\"],\
                 \"lineage\":[\"base\",\"dev\"],\"id\":\"{bottle:04x}{number:028x}\",\"time\":\"{time}\",\
                 \"provider\":\"anthropic\",\"provider_route\":true,\"host\":\"api.anthropic.com\",\"api\":\"messages\",\
                 \"model\":\"{model}\",\"source\":\"main\",\"input\":4,\"output\":92,\"cached\":20512,\
                 \"cache_written\":1830,\"interrupted\":false}}"
            )
            .expect("text");
        }
        fs::write(home.join("usage").join(format!("{}.jsonl", slug(bottle))), text).expect("usage file");
    }
}
