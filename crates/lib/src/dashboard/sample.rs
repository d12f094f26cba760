//! Sample data for tests of the dashboards.

use bottle_host::budget::{Declared, Limit, Scope, Window};
use bottle_host::rates::Cost;
use bottle_keeper::ledger::{GroupBy, Minute, ModelGroup, SourceUsage, Standing, Totals};
use jiff::{SignedDuration, Timestamp};

use super::gather::Gathered;
use super::model::{
    Bottle, BottleState, Detail, Meter, Period, RECENT_MINUTES, Snapshot, UsageTable, sort_meters,
};
use crate::access_log::Shown;

/// The current time in tests.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_767_225_600).expect("a time")
}

/// A budget with this scope, key, window and limit.
pub fn declared(scope: &str, key: &str, window: Window, tokens: u64) -> Declared {
    Declared {
        scope: Scope::parse(scope).expect("a scope"),
        limit: Limit { key: key.to_owned(), window, tokens },
        origin: "~/.bottle/bottles/dev.md:7".to_owned(),
    }
}

/// The tokens that a launch used in one minute, `age` minutes ago.
pub fn minute(
    age: i64,
    slug: &str,
    run: &str,
    agent: &str,
    lineage: &[&str],
    key: &str,
    tokens: u64,
) -> Minute {
    Minute {
        start: now() - SignedDuration::from_mins(age),
        slug: slug.to_owned(),
        run: run.to_owned(),
        agent: agent.to_owned(),
        lineage: lineage.iter().map(|&name| name.to_owned()).collect(),
        key: key.to_owned(),
        tokens,
    }
}

fn recent(each: &[u64]) -> Vec<u64> {
    (0..RECENT_MINUTES).map(|at| each[at % each.len()]).collect()
}

fn meter(scope: &str, key: &str, window: Window, spent: u64, reserved: u64, limit: u64, rate: u64) -> Meter {
    let standing = Standing { spent, reserved, limit };
    Meter { declared: declared(scope, key, window, limit), run: None, standing, rate }
}

/// A bottle that used nothing.
pub fn bottle(slug: &str, state: BottleState, status: &'static str) -> Bottle {
    Bottle {
        slug: slug.parse().expect("a slug"),
        label: None,
        color: None,
        agent: "claude".to_owned(),
        bottles: vec!["dev".to_owned()],
        backend: "linux".to_owned(),
        state,
        status,
        mode: Some("detached"),
        problem: None,
        paused: None,
        cut_off: false,
        started_at: Some(now() - SignedDuration::from_mins(134)),
        proposals: 0,
        tokens: 0,
        recent: recent(&[0]),
        meters: Vec::new(),
    }
}

/// Bottles in every state.
pub fn snapshot() -> Snapshot {
    let mut busy = bottle("api-fix", BottleState::Running, "running");
    busy.tokens = 4_821_113;
    busy.recent = recent(&[9_000, 14_200, 31_000, 4_000, 0, 18_500]);
    busy.meters = vec![
        meter("bottle:dev", "claude", Window::Day, 1_420_000, 30_000, 2_000_000, 12_400),
        meter("ceiling", "claude", Window::Month, 8_000_000, 30_000, 50_000_000, 14_000),
    ];
    sort_meters(&mut busy.meters);
    let mut asking = bottle("docs-7", BottleState::Running, "running");
    asking.proposals = 2;
    asking.agent = "codex".to_owned();
    asking.tokens = 96_100;
    asking.recent = recent(&[0, 600, 1_400]);
    asking.meters = vec![meter("host", "codex", Window::Day, 1_790_000, 0, 2_000_000, 640)];
    let mut spent = bottle("refactor-parser", BottleState::Running, "running");
    spent.tokens = 512_000;
    spent.meters = vec![meter("run:refactor-parser", "all", Window::Run, 512_000, 0, 500_000, 0)];
    spent.paused = Some(
        "the budget of run:refactor-parser for all has 0 of 500,000 tokens left, and the next request may use 21,340"
            .to_owned(),
    );
    let mut locked = bottle("scraper", BottleState::Running, "running");
    locked.problem = Some("all its traffic is denied".to_owned());
    let starting = bottle("fresh", BottleState::Changing, "starting");
    let mut kept = bottle("last-week", BottleState::Kept, "kept");
    kept.tokens = 23_400_000;
    let mut damaged = bottle("torn", BottleState::Broken, "damaged");
    damaged.problem = Some("line 1: expected a value".to_owned());
    (damaged.backend, damaged.agent, damaged.mode, damaged.started_at) =
        (String::new(), String::new(), None, None);
    let ended = bottle("done", BottleState::Ended, "ended");
    let bottles = vec![busy, asking, spent, locked, starting, kept, damaged, ended];
    let sum = |at: usize| bottles.iter().map(|bottle| bottle.recent[at]).sum();
    let recent = (0..RECENT_MINUTES).map(sum).collect();
    Snapshot { at: now(), bottles, recent, proposals: 2, currency: None, problems: Vec::new() }
}

/// The details of a bottle.
pub fn detail() -> Detail {
    let source = |model: &str, source: &str, responses, output| SourceUsage {
        model: model.to_owned(),
        source: source.to_owned(),
        totals: Totals {
            responses,
            input: output / 4,
            output,
            cache_read: output * 9,
            cache_write: 0,
            estimated: 0,
        },
    };
    let line = |seconds: i64, method: &str, path: &str, rest: &str| {
        let time = now() - SignedDuration::from_secs(seconds);
        let line = format!(
            "{{\"event\":\"request\",\"time\":\"{time}\",\"bottle\":\"b\",\"host\":\"api.anthropic.com\",\"port\":443,\
             \"method\":\"{method}\",\"path\":\"{path}\",{rest}}}"
        );
        Shown::parse(&line).expect("a decision")
    };
    Detail {
        slug: "api-fix".parse().expect("a slug"),
        sources: vec![
            source("claude-sonnet-4-5", "main", 312, 380_000),
            source("claude-haiku-4-5", "subagent", 41, 12_000),
        ],
        costs: Vec::new(),
        since: now(),
        decisions: vec![
            line(
                2,
                "POST",
                "/v1/messages",
                "\"verdict\":\"passed\",\"status\":200,\"bytes\":18230,\"milliseconds\":2140",
            ),
            line(9, "GET", "/a", "\"verdict\":\"denied\",\"reason\":\"host-not-allowed\""),
            line(
                31,
                "POST",
                "/v1/messages",
                "\"verdict\":\"redacted\",\"found\":\"a GitHub token in the body\"",
            ),
        ],
    }
}

/// A usage table. With `costs`, each row has a cost.
pub fn usage(by: GroupBy, costs: bool) -> UsageTable {
    let group = |name: &str, output: u64| ModelGroup {
        name: name.to_owned(),
        model: "claude-sonnet-4-5".to_owned(),
        totals: Totals {
            responses: output / 1000,
            input: output / 3,
            output,
            cache_read: output * 8,
            cache_write: output,
            estimated: u64::from(output > 500_000),
        },
    };
    let names = match by {
        GroupBy::Day => ["2025-12-30", "2025-12-31", "2026-01-01"],
        _ => ["", "claude", "llm.example.com"],
    };
    let groups =
        names.iter().zip([120_000, 900_000, 41_000]).map(|(name, output)| group(name, output)).collect();
    let mut table = UsageTable::new(by, Period::Week, groups, None);
    if costs {
        for row in table.rows.iter_mut().chain([&mut table.sum]) {
            row.cost = Some(Cost { amount: 12.5, is_partial: row.name.is_empty() });
        }
    }
    table
}

/// Gathered data that contains only [`snapshot`].
pub fn gathered() -> Gathered {
    Gathered { snapshot: snapshot(), detail: None, usage: None }
}
