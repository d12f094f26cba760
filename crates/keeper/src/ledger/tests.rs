//! The ledger must contain each record of the usage files exactly once, even if the files are changed, processes are
//! killed or the database fails.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::{TimeZone, offset};
use proptest::prelude::*;
use rusqlite::Connection;

use super::error::Cause;
use super::{Group, GroupBy, Ingested, Ledger, LedgerError, Response, Totals, schema};

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("home");
    fs::create_dir(home.path().join("usage")).expect("directory");
    home
}

fn append(home: &Path, text: &str) {
    let path = home.join("usage/one.jsonl");
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("open");
    file.write_all(text.as_bytes()).expect("append");
}

fn line(id: &str, rest: &str) -> String {
    format!("{{\"agent\":\"claude\",\"id\":\"{id}\",\"time\":\"2026-01-31T12:00:00Z\",{rest}}}\n")
}

fn ordinary(id: u64) -> String {
    let rest = "\"provider\":\"x\",\"host\":\"llm.example\",\"api\":\"messages\",\"model\":\"m\",\"input\":1,\"interrupted\":false";
    line(&format!("{id:032x}"), rest)
}

fn responses(ledger: &Ledger) -> Vec<Response> {
    let mut all = Vec::new();
    let read: Result<(), LedgerError> = ledger.for_each_response(Timestamp::UNIX_EPOCH, |response| {
        all.push(response);
        Ok(())
    });
    read.expect("read");
    all
}

fn open(home: &Path) -> Ledger {
    Ledger::open(home).expect("ledger")
}

#[test]
fn makes_the_counts_of_all_apis_comparable() {
    let home = home();
    let mut ledger = open(home.path());
    for (api, counts, [input, output, read, write], estimated) in [
        (
            "messages",
            "\"input\":4,\"output\":92,\"cached\":20512,\"cache_written\":1830",
            [4, 92, 20512, 1830],
            false,
        ),
        ("chat-completions", "\"input\":1340,\"output\":77,\"cached\":1024", [316, 77, 1024, 0], false),
        (
            "responses",
            "\"input\":9021,\"output\":310,\"cached\":8960,\"cache_written\":11",
            [50, 310, 8960, 11],
            false,
        ),
        // The counts contradict each other.
        ("responses", "\"input\":10,\"output\":1,\"cached\":11", [0, 1, 11, 0], true),
        // A line that was edited by hand.
        ("messages", "\"input\":1152921504606846976,\"output\":1", [1_000_000_000, 1, 0, 0], true),
        ("messages", "\"input\":0,\"output\":0", [0, 0, 0, 0], false),
    ] {
        // Ids of older versions. Some of these ids are as long as the form of current ids that the database stores.
        let id = format!("{api}-{input}-{estimated}");
        append(
            home.path(),
            &line(
                &id,
                &format!(
                    "\"provider\":\"x\",\"host\":\"llm.example\",\"api\":\"{api}\",{counts},\"interrupted\":false"
                ),
            ),
        );
        assert_eq!(
            ledger.ingest(home.path()).expect("ingest"),
            Ingested { added: 1, skipped: 0 },
            "{counts}"
        );
        let response = responses(&ledger).into_iter().find(|response| response.id == id).expect(&id);
        let estimated = u64::from(estimated);
        let totals = Totals { responses: 1, input, output, cache_read: read, cache_write: write, estimated };
        assert_eq!(response.totals, totals, "{counts}");
        assert_eq!(response.totals.total(), input + output + read + write);
    }
}

#[test]
fn takes_in_the_records_of_old_versions_and_of_this_one() {
    let home = home();
    let old =
        "\"provider\":\"anthropic\",\"host\":\"api.anthropic.com\",\"api\":\"messages\",\"interrupted\":true";
    append(home.path(), &line("old", old));
    let new = "\"run\":\"0a\",\"template\":\"claude\",\"bottles\":[\"team\"],\"lineage\":[\"base\",\"team\"],\"provider\":\"anthropic\",\
               \"host\":\"api.anthropic.com\",\"api\":\"messages\",\"input\":3,\"interrupted\":false,\"estimated\":true,\"source\":\"subagent\"";
    append(home.path(), &line("0123456789abcdef0123456789abcdef", &format!("{new},\"provider_route\":true")));
    append(home.path(), &line("elsewhere", new));
    append(home.path(), "no record\n");
    let mut ledger = open(home.path());
    assert_eq!(ledger.ingest(home.path()).expect("ingest"), Ingested { added: 3, skipped: 1 });
    let all = responses(&ledger);
    let keys: Vec<&str> = all.iter().map(|response| response.key.as_str()).collect();
    // Only a response that came through the provider route has the template as its budget key.
    assert_eq!(keys, ["api.anthropic.com", "claude", "api.anthropic.com"]);
    assert_eq!((all[0].id.as_str(), all[0].labels.run.as_deref(), all[0].totals.estimated), ("old", None, 1));
    let new = &all[1];
    assert_eq!((new.id.as_str(), new.source.as_str()), ("0123456789abcdef0123456789abcdef", "subagent"));
    assert_eq!((new.labels.run.as_deref(), new.totals.estimated), (Some("0a"), 1));
    assert_eq!(
        (&new.labels.bottles[..], &new.labels.lineage[..]),
        (&["team".to_owned()][..], &["base".to_owned(), "team".to_owned()][..])
    );
}

#[test]
fn ingests_files_that_are_longer_than_one_transaction() {
    let home = home();
    append(home.path(), &(0..10_000).map(ordinary).collect::<String>());
    let mut ledger = open(home.path());
    assert_eq!(ledger.ingest(home.path()).expect("ingest").added, 10_000);
    assert_eq!(ledger.ingest(home.path()).expect("again").added, 0);
    append(home.path(), &ordinary(10_000));
    assert_eq!(ledger.ingest(home.path()).expect("one more").added, 1);
}

#[test]
fn a_line_that_is_too_long_hides_no_other() {
    let home = home();
    append(home.path(), &ordinary(1));
    append(home.path(), &format!("{}\n", "x".repeat(300_000)));
    append(home.path(), &ordinary(2));
    assert_eq!(open(home.path()).ingest(home.path()).expect("ingest"), Ingested { added: 2, skipped: 3 });
}

#[test]
fn groups_by_the_day_of_the_users_time_zone() {
    let home = home();
    let mut ledger = open(home.path());
    let at = |id: &str, time: &str, model: &str, input: u64| {
        format!(
            "{{\"agent\":\"a\",\"id\":\"{id}\",\"time\":\"{time}\",\"provider\":\"x\",\"host\":\"h.example\",\"api\":\"messages\",\
             \"model\":\"{model}\",\"input\":{input},\"output\":0,\"interrupted\":false}}\n"
        )
    };
    // In this time zone, the second record is at midnight, one millisecond after the first record.
    append(home.path(), &at("a", "2026-01-31T18:14:59.999Z", "m", 1));
    append(home.path(), &at("b", "2026-01-31T18:15:00Z", "m", 2));
    append(home.path(), &at("c", "2026-01-31T20:00:00Z", "n", 4));
    ledger.ingest(home.path()).expect("ingest");
    let zone = TimeZone::fixed(offset(5).saturating_add(jiff::Span::new().minutes(45)));
    let groups = |by, since: &str| -> Vec<(String, u64)> {
        let groups = ledger.groups(by, since.parse().expect("time"), &zone).expect("groups");
        groups.into_iter().map(|Group { name, totals }| (name, totals.total())).collect()
    };
    let pair = |name: &str, total| (name.to_owned(), total);
    assert_eq!(groups(GroupBy::Day, "2026-01-01T00:00:00Z"), [pair("2026-01-31", 1), pair("2026-02-01", 6)]);
    assert_eq!(groups(GroupBy::Model, "2026-01-01T00:00:00Z"), [pair("n", 4), pair("m", 3)]);
    assert_eq!(groups(GroupBy::Bottle, "2026-01-31T18:15:00Z"), [pair("one", 6)]);
    // `since` may be a time within a quarter of an hour.
    assert_eq!(groups(GroupBy::Bottle, "2026-01-31T18:14:59.999Z"), [pair("one", 7)]);
    assert_eq!(groups(GroupBy::Bottle, "2026-01-31T18:15:00.001Z"), [pair("one", 4)]);
}

/// A change of the usage file, or an ingestion.
#[derive(Debug, Clone)]
enum Step {
    /// Appends the given number of new records.
    Append(u8),
    /// Appends earlier records again.
    Replay,
    /// Appends an incomplete record, as a killed keeper does.
    Cut(u16),
    /// Removes an incomplete last line, as a keeper does before it appends.
    Repair,
    /// Replaces the file by a file without the first lines, as a cleanup does.
    Shorten(u8),
    /// Removes the file.
    Remove,
    Ingest,
    /// Another process opens the database and ingests.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..20_u8).prop_map(Step::Append),
        1 => Just(Step::Replay),
        2 => (0..200_u16).prop_map(Step::Cut),
        2 => Just(Step::Repair),
        1 => (1..8_u8).prop_map(Step::Shorten),
        1 => Just(Step::Remove),
        4 => Just(Step::Ingest),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_complete_line_is_counted_once(steps in prop::collection::vec(step(), 1..30)) {
        let home = home();
        let path = home.path().join("usage/one.jsonl");
        let mut ledger = open(home.path());
        let (mut next, mut expected) = (0, BTreeSet::new());
        let complete = |text: &str| -> String {
            text.rfind('\n').map_or_else(String::new, |end| text[..=end].to_owned())
        };
        for step in steps.into_iter().chain([Step::Ingest]) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            match step {
                Step::Append(count) => {
                    fs::write(&path, complete(&text)).expect("repair");
                    (0..count).for_each(|_| {
                        append(home.path(), &ordinary(next));
                        next += 1;
                    });
                }
                Step::Replay => append(home.path(), &complete(&text)),
                Step::Cut(length) => {
                    let line = ordinary(next);
                    append(home.path(), &line[..usize::from(length).min(line.len() - 1)]);
                }
                Step::Repair => fs::write(&path, complete(&text)).expect("repair"),
                Step::Shorten(lines) => {
                    let rest: String = text.split_inclusive('\n').skip(lines.into()).collect();
                    fs::write(path.with_extension("new"), rest).expect("write");
                    fs::rename(path.with_extension("new"), &path).expect("rename");
                }
                Step::Remove => drop(fs::remove_file(&path)),
                Step::Ingest | Step::Reopen => {
                    if matches!(step, Step::Reopen) {
                        ledger = open(home.path());
                    }
                    ledger.ingest(home.path()).expect("ingest");
                    let ids = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
                    expected.extend(ids.filter_map(|line| {
                        Some(serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str()?.to_owned())
                    }));
                    let found: Vec<String> = responses(&ledger).into_iter().map(|one| one.id).collect();
                    prop_assert_eq!(found.len(), expected.len());
                    let groups = ledger.groups(GroupBy::Bottle, Timestamp::UNIX_EPOCH, &TimeZone::UTC).expect("groups");
                    let summed: u64 = groups.iter().map(|group| group.totals.responses).sum();
                    prop_assert_eq!(summed, expected.len() as u64, "the sums are those of the records");
                    prop_assert_eq!(&found.into_iter().collect::<BTreeSet<_>>(), &expected);
                }
            }
        }
    }
}

#[test]
fn processes_that_ingest_at_the_same_time_count_each_record_once() {
    let home = home();
    append(home.path(), &(0..20_000).map(ordinary).collect::<String>());
    let added: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| open(home.path()).ingest(home.path()).expect("ingest").added))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
    });
    assert_eq!((added, responses(&open(home.path())).len()), (20_000, 20_000));
}

#[test]
fn migrates_once_and_refuses_a_newer_schema() {
    let home = home();
    append(home.path(), &ordinary(1));
    open(home.path()).ingest(home.path()).expect("ingest");
    assert_eq!(responses(&open(home.path())).len(), 1, "opening it again changes nothing");
    let connection = Connection::open(home.path().join("bottle.db")).expect("open");
    connection.execute("UPDATE schema_version SET version = 1000", ()).expect("update");
    drop(connection);
    let error = Ledger::open(home.path()).expect_err("newer");
    let Cause::Newer { found: 1000, known } = error.cause else { panic!("{error}") };
    assert_eq!(known, schema::known());
    assert!(
        error.to_string().ends_with("a newer version of bottle wrote it (schema 1000; this version knows 2)")
    );
    assert!(error.hint().starts_with("update bottle"));
}

#[test]
fn only_the_user_can_read_the_database() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = home();
    let ledger = open(home.path());
    for name in ["bottle.db", "bottle.db-wal", "bottle.db-shm"] {
        let mode = fs::metadata(home.path().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    drop(ledger);
}

#[test]
fn says_what_is_wrong_with_a_database_that_cannot_be_used() {
    // The file is not a database.
    let other = home();
    fs::write(other.path().join("bottle.db"), "a text that is no database, and long enough to look at")
        .expect("write");
    let error = Ledger::open(other.path()).expect_err("no database");
    assert!(matches!(error.cause, Cause::Damaged(_)) && error.hint().contains("bottle.db away"), "{error:?}");
    // The path is a directory.
    let other = home();
    fs::create_dir(other.path().join("bottle.db")).expect("directory");
    let error = Ledger::open(other.path()).expect_err("a directory");
    assert!(matches!(error.cause, Cause::Unopened(_)), "{error:?}");
    // The database is damaged in the middle.
    let damaged = home();
    append(damaged.path(), &(0..5_000).map(ordinary).collect::<String>());
    open(damaged.path()).ingest(damaged.path()).expect("ingest");
    let path = damaged.path().join("bottle.db");
    let mut bytes = fs::read(&path).expect("read");
    bytes[8192..].fill(0x5a);
    fs::write(&path, bytes).expect("write");
    let failed = Ledger::open(damaged.path())
        .and_then(|ledger| ledger.for_each_response(Timestamp::UNIX_EPOCH, |_| Ok::<_, LedgerError>(())));
    assert!(matches!(failed.expect_err("damaged").cause, Cause::Damaged(_)));
    // Another process has locked the database.
    let locked = home();
    append(locked.path(), &ordinary(1));
    let blocker = open(locked.path());
    blocker.connection().execute_batch("BEGIN IMMEDIATE").expect("lock");
    let mut waiting =
        Ledger::open_with_busy_handler(locked.path(), |_| false).expect("readers are not blocked");
    let error = waiting.ingest(locked.path()).expect_err("locked");
    assert!(matches!(error.cause, Cause::Locked(_)), "{error:?}");
    blocker.connection().execute_batch("COMMIT").expect("unlock");
    assert_eq!(waiting.ingest(locked.path()).expect("later").added, 1);
    // The disk is full.
    let full = home();
    append(full.path(), &(0..5_000).map(ordinary).collect::<String>());
    let mut ledger = open(full.path());
    ledger.connection().pragma_update(None, "max_page_count", 30).expect("pragma");
    assert!(matches!(ledger.ingest(full.path()).expect_err("full").cause, Cause::Full(_)));
    ledger.connection().pragma_update(None, "max_page_count", 100_000).expect("pragma");
    ledger.ingest(full.path()).expect("there is room again");
    assert_eq!(responses(&ledger).len(), 5_000);
    // The database is read-only.
    let read_only = home();
    append(read_only.path(), &ordinary(1));
    let mut ledger = open(read_only.path());
    ledger.connection().pragma_update(None, "query_only", true).expect("pragma");
    assert!(matches!(ledger.ingest(read_only.path()).expect_err("read-only").cause, Cause::ReadOnly(_)));
    assert!(responses(&ledger).is_empty(), "it can still be read");
}

mod standings {
    use bottle_host::budget::{Declared, Limit, Scope, Window};
    use jiff::Zoned;

    use super::*;
    use crate::ledger::Standing;

    fn declared(scope: &str, key: &str, window: Window, tokens: u64) -> Declared {
        let limit = Limit { key: key.to_owned(), window, tokens };
        Declared { scope: Scope::parse(scope).expect("scope"), limit, origin: "settings.yml:1".to_owned() }
    }

    /// Returns a usage record of 10 tokens, either of claude through its provider route or of another host.
    fn spent(id: u64, time: &str, agent: &str, run: &str, lineage: &str, claude: bool) -> String {
        let (template, route) = if claude { ("claude", true) } else { ("command", false) };
        format!(
            "{{\"agent\":\"{agent}\",\"run\":\"{run}\",\"template\":\"{template}\",\"bottles\":[],\"lineage\":[{lineage}],\
             \"id\":\"{id:032x}\",\"time\":\"{time}\",\"provider\":\"x\",\"host\":\"h.example\",\"api\":\"messages\",\
             \"input\":4,\"output\":1,\"cached\":2,\"cache_written\":3,\"interrupted\":false,\"provider_route\":{route}}}\n"
        )
    }

    #[test]
    fn each_scope_and_window_counts_its_own_tokens() {
        let home = home();
        for (id, (time, agent, run, lineage, claude)) in [
            ("2026-01-31T22:59:59Z", "a", "r1", "\"base\",\"dev\"", true),
            ("2026-01-31T23:00:00Z", "a", "r2", "\"base\",\"dev\"", true),
            ("2026-02-01T10:00:00Z", "b", "r3", "\"base\"", true),
            ("2026-02-01T11:00:00Z", "b", "r3", "\"base\"", false),
            ("2025-12-31T11:00:00Z", "b", "r0", "\"other\"", false),
        ]
        .into_iter()
        .enumerate()
        {
            append(home.path(), &spent(id as u64, time, agent, run, lineage, claude));
        }
        let mut ledger = open(home.path());
        ledger.ingest(home.path()).expect("ingest");
        // `now` is one hour ahead of UTC, so the second record belongs to February.
        let now: Zoned = "2026-02-01T12:00:00+01:00[Europe/Berlin]".parse().expect("time");
        for (scope, key, window, run, expected) in [
            ("host", "claude", Window::Total, None, 30),
            ("ceiling", "claude", Window::Month, None, 20),
            ("host", "claude", Window::Day, None, 20),
            ("host", "h.example", Window::Total, None, 20),
            ("host", "codex", Window::Total, None, 0),
            ("agent:a", "claude", Window::Total, None, 20),
            ("agent:a", "claude", Window::Month, None, 10),
            ("agent:b", "claude", Window::Total, None, 10),
            ("bottle:base", "claude", Window::Total, None, 30),
            ("bottle:dev", "claude", Window::Total, None, 20),
            ("bottle:other", "h.example", Window::Total, None, 10),
            ("bottle:none", "claude", Window::Total, None, 0),
            ("run:one", "all", Window::Run, Some("r3"), 20),
            ("run:one", "claude", Window::Run, Some("r3"), 10),
            ("agent:b", "claude", Window::Run, Some("r3"), 10),
            ("agent:b", "claude", Window::Run, None, 0),
        ] {
            let declared = declared(scope, key, window, 25);
            let standing = ledger.standing(&declared, run, &now).expect("standing");
            assert_eq!(standing, Standing { spent: expected, reserved: 0, limit: 25 }, "{declared}");
            assert_eq!(standing.is_spent(), expected >= 25, "{declared}");
            assert_eq!(standing.left(), 25_u64.saturating_sub(expected), "{declared}");
        }
    }

    #[test]
    fn top_ups_hold_in_their_window_and_reservations_count() {
        let home = home();
        append(home.path(), &spent(1, "2026-02-01T10:00:00Z", "a", "r1", "", true));
        let mut ledger = open(home.path());
        ledger.ingest(home.path()).expect("ingest");
        let now = Zoned::now();
        let day = declared("host", "claude", Window::Day, 5);
        ledger.top_up(&day, None, 7, "me").expect("top up");
        ledger.top_up(&day, None, 1, "me").expect("top up");
        let limit = |declared: &Declared, run, now: &Zoned| {
            ledger.standing(declared, run, now).expect("standing").limit
        };
        assert_eq!(limit(&day, None, &now), 13);
        let tomorrow = now.checked_add(jiff::Span::new().days(1)).expect("time");
        assert_eq!(limit(&day, None, &tomorrow), 5);
        for other in [
            declared("host", "claude", Window::Month, 5),
            declared("host", "codex", Window::Day, 5),
            declared("ceiling", "claude", Window::Day, 5),
            declared("agent:a", "claude", Window::Day, 5),
        ] {
            assert_eq!(limit(&other, None, &now), 5, "{other}");
        }
        // The top-ups of a limit per launch apply only to one launch, no matter which manifest declares the limit.
        let per_run = declared("agent:a", "claude", Window::Run, 5);
        ledger.top_up(&per_run, Some("r1"), 2, "me").expect("top up");
        let standing = |run| ledger.standing(&per_run, Some(run), &now).expect("standing");
        assert_eq!((standing("r1").limit, standing("r2").limit), (7, 5));
        let reserve = "INSERT INTO leases SELECT id, 'claude', 6, 6, 0 FROM launches";
        ledger.connection().execute(reserve, ()).expect("reserve");
        let total = declared("host", "claude", Window::Total, 17);
        let standing = ledger.standing(&total, None, &now).expect("standing");
        assert_eq!((standing, standing.left()), (Standing { spent: 10, reserved: 6, limit: 17 }, 1));
    }

    #[test]
    fn a_thousand_huge_top_ups_do_not_overflow() {
        let home = home();
        let mut ledger = open(home.path());
        let day = declared("host", "claude", Window::Total, 1 << 53);
        for _ in 0..1100 {
            ledger.top_up(&day, None, 1 << 53, "me").expect("top up");
        }
        let standing = ledger.standing(&day, None, &Zoned::now()).expect("standing");
        assert_eq!(standing.limit, 1101 << 53);
        assert!(!standing.is_spent());
    }
}

#[test]
fn dashboards_read_minutes_bottles_and_sources() {
    let home = home();
    let write = |slug: &str, lines: &[(&str, &str, &str, u64)]| {
        let text: String = lines
            .iter()
            .enumerate()
            .map(|(at, (time, model, source, output))| {
                format!(
                    "{{\"agent\":\"a\",\"run\":\"{slug}\",\"lineage\":[\"base\"],\"id\":\"{slug}-{at}\",\"time\":\"{time}\",\
                     \"provider\":\"x\",\"host\":\"llm.example\",\"api\":\"messages\",\"model\":\"{model}\",\
                     \"source\":\"{source}\",\"output\":{output},\"interrupted\":false}}\n"
                )
            })
            .collect();
        fs::write(home.path().join(format!("usage/{slug}.jsonl")), text).expect("write");
    };
    write(
        "one",
        &[
            ("2026-01-31T12:00:01Z", "m", "main", 5),
            ("2026-01-31T12:00:59Z", "m", "main", 7),
            ("2026-01-31T12:01:00Z", "m", "subagent", 100),
            ("2026-01-30T12:00:00Z", "old", "main", 1000),
        ],
    );
    write("two", &[("2026-01-31T12:00:30Z", "n", "main", 3)]);
    let mut ledger = open(home.path());
    ledger.ingest(home.path()).expect("ingest");
    let since = "2026-01-31T12:00:00Z".parse().expect("a time");
    let minutes: Vec<_> = ledger
        .minutes(since)
        .expect("minutes")
        .into_iter()
        .map(|minute| (minute.start.to_string(), minute.slug, minute.lineage, minute.key, minute.tokens))
        .collect();
    let minute = |start: &str, slug: &str, tokens| {
        (start.to_owned(), slug.to_owned(), vec!["base".to_owned()], "llm.example".to_owned(), tokens)
    };
    assert_eq!(
        minutes,
        [
            minute("2026-01-31T12:00:00Z", "one", 12),
            minute("2026-01-31T12:00:00Z", "two", 3),
            minute("2026-01-31T12:01:00Z", "one", 100)
        ]
    );
    let tokens = ledger.tokens_by_bottle().expect("tokens");
    assert_eq!(tokens.into_iter().collect::<Vec<_>>(), [("one".to_owned(), 1112), ("two".to_owned(), 3)]);
    let keys = ledger.keys_by_bottle().expect("keys");
    assert_eq!(keys["one"], ["llm.example"]);
    let sources = ledger.sources(&"one".parse().expect("a slug"), since).expect("sources");
    let sources: Vec<_> = sources
        .iter()
        .map(|used| (used.model.as_str(), used.source.as_str(), used.totals.responses, used.totals.total()))
        .collect();
    assert_eq!(sources, [("m", "subagent", 1, 100), ("m", "main", 2, 12)]);
    let groups = ledger.model_groups(GroupBy::Bottle, Timestamp::MIN, &TimeZone::UTC).expect("groups");
    let groups: Vec<_> = groups
        .iter()
        .map(|group| (group.name.as_str(), group.model.as_str(), group.totals.total()))
        .collect();
    assert_eq!(groups, [("one", "m", 112), ("one", "old", 1000), ("two", "n", 3)]);
}
