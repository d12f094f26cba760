//! Bottles share a budget while their keepers and proxies are killed at random. The budget must hold, and the ledger must
//! count each response exactly once.
//!
//! A proxy that is killed while a response passes through it cannot count it. So the ledger has at least the responses
//! that reached the clients whole, and at most those that the model sent.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::sync::RwLock;
use std::time::Duration;

use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use serde_json::Value;

use super::cleanup_leaves_nothing;
use super::left::all_with;
use super::usage::{EQUAL, Model, connect};

/// A request reserves eight tokens of prompt and these, which is more than its response has. The model reads a body up to
/// `{}`.
const BODY: &str = r#"{"max_tokens":100,"x":{}"#;

/// The tokens of a response.
const TOKENS: u64 = EQUAL[0] + EQUAL[1];

/// How many bottles, kills of each bottle, and requests between two kills.
struct Size {
    bottles: usize,
    kills: usize,
    requests: usize,
}

/// What the requests of a bottle led to.
#[derive(Default)]
struct Tally {
    /// Responses that arrived whole.
    whole: u64,
    /// Requests that were denied because the budget was spent.
    denied: u64,
}

struct Scene {
    home: TestHome,
    model: Model,
    /// Held for writing during a cleanup, which removes bottles whose keeper is dead, and for reading from the death of a
    /// keeper until its bottle has another one.
    cleaning: RwLock<()>,
}

impl Scene {
    fn new(budget: u64) -> Self {
        let model = Model::start();
        let mut home = super::home();
        home.without_cleanup();
        home.bottle("limited", &model.bottle()).expect("bottle");
        let settings = format!("budget: {{llm.example: {budget}}}\ncutoff: cutoff\n");
        home.write("home/.bottle/settings.yml", &settings).expect("settings");
        Self { home, model, cleaning: RwLock::default() }
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.home.program(arguments.iter().copied()).expect("program").run().expect("run")
    }

    /// Sends a request through the bottle's proxy. Returns what arrived of the response, if the proxy runs.
    fn ask(&self, bottle: &str) -> Option<String> {
        let mut proxy = connect(&self.home, bottle).ok()?;
        proxy.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let length = BODY.len();
        let request = format!(
            "POST http://llm.example/equal/v1/messages HTTP/1.1\r\nhost: llm.example\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{BODY}"
        );
        proxy.write_all(request.as_bytes()).ok()?;
        let mut response = Vec::new();
        // An error is the end of a proxy that was killed.
        let _ = proxy.read_to_end(&mut response);
        Some(String::from_utf8_lossy(&response).into_owned())
    }

    /// Sends requests, and kills a process of the bottle in the midst of them. The bottle then gets another keeper, or is
    /// started anew.
    fn round(&self, bottle: &str, requests: usize, tally: &mut Tally) {
        let role = ["__keeper", "__egress", "__bundle"][rand::random_range(0..3)];
        let delay = Duration::from_micros(rand::random_range(0..60_000));
        std::thread::scope(|threads| {
            threads.spawn(move || {
                std::thread::sleep(delay);
                let adopting = (role == "__keeper").then(|| self.cleaning.read());
                let struck = all_with(&self.home, role).into_iter().find(|found| found.is_of(bottle));
                struck.unwrap_or_else(|| panic!("no {role} of {bottle}")).kill();
                if role == "__keeper" {
                    // This command adopts the bottle, and the requests that wait for tokens go on.
                    let _ = self.run(&["exec", bottle, "--", "true"]).expect_code(0);
                    drop(adopting);
                } else {
                    self.run(&["stop", bottle, "--time", "0"]);
                    let cleaning = self.cleaning.write();
                    self.run(&["cleanup", "--yes"]);
                    drop(cleaning);
                    self.start(bottle);
                }
            });
            for _ in 0..requests {
                let response = self.ask(bottle).unwrap_or_default();
                tally.whole += u64::from(response.contains("message_stop"));
                tally.denied += u64::from(response.contains("budget-spent"));
                if response.is_empty() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
    }

    /// Starts a bottle. A spent budget prevents it, and then nothing is left to test.
    fn start(&self, bottle: &str) -> bool {
        let start = ["start", "sleeper", "--bottle", "limited", "--label", bottle, "--yes", "--detach"];
        self.run(&start).code == 0
    }

    fn records(&self) -> Vec<Value> {
        let files = fs::read_dir(self.home.bottle_home().join("usage")).expect("usage");
        let texts = files.map(|file| fs::read_to_string(file.expect("file").path()).expect("text"));
        texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .map(|line| serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}")))
            .collect()
    }

    /// The tokens that the ledger counts.
    fn spent(&self) -> u64 {
        let usage = self.home.program(["usage", "--by", "bottle", "--json"]).expect("program").run();
        let groups = usage.expect("usage").expect_code(0).json().expect("JSON");
        groups.as_array().into_iter().flatten().filter_map(|group| group["tokens"]["total"].as_u64()).sum()
    }
}

#[allow(clippy::print_stdout, reason = "the soak run shows what it measured")]
fn a_budget_holds_while_processes_are_killed(size: &Size, budget: u64) {
    let scene = Scene::new(budget);
    // All bottles start before one of them spends the budget, because a spent budget prevents a start.
    for number in 0..size.bottles {
        assert!(scene.start(&format!("b{number}")), "b{number} starts");
    }
    let tally = std::thread::scope(|threads| {
        let bottles: Vec<_> = (0..size.bottles)
            .map(|number| {
                let scene = &scene;
                threads.spawn(move || {
                    let (bottle, mut tally) = (format!("b{number}"), Tally::default());
                    for _ in 0..size.kills {
                        // Without this bottle, because its start was refused, the others go on.
                        if scene.ask(&bottle).is_none() {
                            break;
                        }
                        scene.round(&bottle, size.requests, &mut tally);
                    }
                    tally
                })
            })
            .collect();
        let tallies = bottles.into_iter().map(|bottle| bottle.join().expect("a bottle"));
        tallies.fold(Tally::default(), |all, one| Tally {
            whole: all.whole + one.whole,
            denied: all.denied + one.denied,
        })
    });
    let Tally { whole, denied } = tally;
    for number in 0..size.bottles {
        scene.run(&["stop", &format!("b{number}"), "--time", "0"]);
    }
    cleanup_leaves_nothing(&scene.home, "");
    let (records, sent) = (scene.records(), scene.model.answered());
    let ids: HashSet<&str> = records.iter().filter_map(|record| record["id"].as_str()).collect();
    assert_eq!(ids.len(), records.len(), "a record is there twice");
    let count = records.len() as u64;
    println!("{whole} whole responses, {count} records, {sent} sent by the model, {denied} denied");
    assert!((whole..=sent).contains(&count), "{whole} whole, {count} records, {sent} sent");
    for record in records.iter().filter(|record| record["interrupted"] == false) {
        assert_eq!((&record["input"], &record["output"]), (&EQUAL[0].into(), &EQUAL[1].into()), "{record}");
    }
    let spent = scene.spent();
    let recorded = records.iter().map(|record| {
        ["input", "output"].map(|kind| record[kind].as_u64().expect("a number")).into_iter().sum::<u64>()
    });
    assert_eq!(spent, recorded.sum::<u64>(), "the ledger counts what was recorded");
    assert!(spent >= whole * TOKENS && spent <= budget, "{spent} of {budget}");
    assert!(denied > 0, "the budget was spent");
}

#[test]
fn keepers_and_proxies_that_are_killed_spend_no_more_than_the_budget() {
    let size = Size { bottles: 4, kills: 3, requests: 30 };
    a_budget_holds_while_processes_are_killed(&size, 2_500);
}

#[test]
#[ignore = "takes ten minutes: `.ci/run soak`"]
fn fifty_proxies_that_are_killed_spend_no_more_than_the_budget() {
    // A third of the requests find no proxy, because it was just killed.
    let size = Size { bottles: 50, kills: 20, requests: 150 };
    a_budget_holds_while_processes_are_killed(&size, 50 * 1_000 * TOKENS);
}
