//! Tests that the ledger counts each record of the usage files exactly once, although the processes that ingest the
//! records and the process that writes them are killed.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The number of records that are written before each kill.
const RECORDS: u64 = 3000;

fn record(number: u64) -> String {
    format!(
        "{{\"agent\":\"a\",\"id\":\"{number:032x}\",\"time\":\"2026-01-31T12:00:00Z\",\"provider\":\"x\",\"host\":\"h.example\",\
         \"api\":\"messages\",\"input\":{number},\"output\":0,\"interrupted\":false}}\n"
    )
}

fn append(usage: &Path, text: &str) {
    let path = usage.join("one.jsonl");
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("open");
    file.write_all(text.as_bytes()).expect("append");
}

fn usage_command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bottle"));
    command.args(["usage", "--by", "bottle", "--json"]);
    command.env("BOTTLE_HOME", home).env("HOME", home).env("XDG_RUNTIME_DIR", home.join("run"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_killed_ingestion_neither_loses_nor_doubles_usage() {
    let directory = tempfile::tempdir().expect("directory");
    let home = directory.path().join("home");
    let usage = home.join("usage");
    fs::create_dir_all(&usage).expect("directory");
    let (mut written, mut killed) = (0, 0);
    for round in 0..40_u64 {
        let mut text = String::new();
        for number in written..written + RECORDS {
            let _ = write!(text, "{}", record(number));
        }
        written += RECORDS;
        // The writer was killed in the middle of a record, and writes this record again.
        if round % 3 == 0 {
            append(&usage, &text[..text.len() / 2]);
            let whole = fs::read_to_string(usage.join("one.jsonl")).expect("read");
            let end = whole.rfind('\n').map_or(0, |end| end + 1);
            let mut first = usage_command(&home).spawn().expect("start");
            std::thread::sleep(Duration::from_millis(round % 20));
            first.kill().expect("kill");
            let _ = first.wait().expect("wait");
            let file = OpenOptions::new().write(true).open(usage.join("one.jsonl")).expect("open");
            file.set_len(end as u64).expect("truncate");
        }
        append(&usage, &text);
        let mut processes: Vec<_> = (0..2).map(|_| usage_command(&home).spawn().expect("start")).collect();
        std::thread::sleep(Duration::from_millis(5 + round * 4));
        for process in &mut processes {
            killed += u64::from(process.try_wait().expect("wait").is_none());
            let _ = process.kill();
            let _ = process.wait().expect("wait");
        }
    }
    assert!(killed > 5, "only {killed} processes were killed at work");
    let output = usage_command(&home).output().expect("run");
    let groups: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(groups[0]["responses"], written);
    assert_eq!(groups[0]["tokens"]["total"], written * (written - 1) / 2, "after {killed} kills");
}
