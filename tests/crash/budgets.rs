//! Bottles share a budget while their keepers and proxies are killed at random. The budget must hold, and the ledger
//! must count each response exactly once.
//!
//! Before a proxy sends a request, it records the request as interrupted, with all tokens that it reserved. At the end
//! of the response, the proxy replaces this record. The ledger therefore contains at least the responses that reached
//! the clients completely. It contains at most the responses that the model sent, and one record for each proxy that
//! was killed before it sent a request.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::ops::Add;
use std::sync::RwLock;
use std::time::Duration;

use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use rusqlite::Connection;
use serde_json::Value;

use super::left::{all_with, process_with};
use super::usage::{EQUAL, Model, connect};
use super::{cleanup_leaves_nothing, wait_until};

/// The output limit of a request. The request reserves this limit and a few tokens for the prompt, which is more than
/// the tokens of its response.
const OUTPUT: u64 = 100;

/// The tokens of a response.
const TOKENS: u64 = EQUAL[0] + EQUAL[1];

/// The number of bottles, of kills of each bottle, and of requests between two kills.
struct Size {
    bottles: usize,
    kills: usize,
    requests: usize,
}

/// The results of the requests of a bottle.
#[derive(Default)]
struct Tally {
    /// Responses that arrived completely.
    whole: u64,
    /// Requests that were denied because the budget was spent.
    denied: u64,
    /// Proxies that were killed.
    proxies_killed: u64,
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            whole: self.whole + other.whole,
            denied: self.denied + other.denied,
            proxies_killed: self.proxies_killed + other.proxies_killed,
        }
    }
}

struct Scene {
    home: TestHome,
    model: Model,
    /// This lock is held for writing during a cleanup, because a cleanup removes bottles without a keeper. It is held
    /// for reading from the death of a keeper until the bottle has another keeper.
    cleaning: RwLock<()>,
}

impl Scene {
    fn new(budget: u64, cutoff: &str) -> Self {
        let model = Model::start();
        let mut home = super::home();
        home.without_cleanup();
        home.bottle("limited", &model.bottle()).expect("bottle");
        let settings = format!("budget: {{llm.example: {budget}}}\ncutoff: {cutoff}\n");
        home.write("home/.bottle/settings.yml", &settings).expect("settings");
        Self { home, model, cleaning: RwLock::default() }
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.home.program(arguments.iter().copied()).expect("program").run().expect("run")
    }

    /// Sends a request through the bottle's proxy. Returns the received part of the response, or `None` if the proxy
    /// does not run.
    fn ask(&self, bottle: &str) -> Option<String> {
        self.ask_at("equal", OUTPUT, bottle)
    }

    /// Sends a request with this output limit to a path of the model.
    fn ask_at(&self, path: &str, output: u64, bottle: &str) -> Option<String> {
        let mut proxy = connect(&self.home, bottle).ok()?;
        proxy.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        // The model reads a body up to `{}}`.
        let body = format!("{{\"max_tokens\":{output},\"x\":{{}}}}");
        let length = body.len();
        let request = format!(
            "POST http://llm.example/{path}/v1/messages HTTP/1.1\r\nhost: llm.example\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        );
        proxy.write_all(request.as_bytes()).ok()?;
        let mut response = Vec::new();
        // An error means that the proxy was killed.
        let _ = proxy.read_to_end(&mut response);
        Some(String::from_utf8_lossy(&response).into_owned())
    }

    /// Sends requests, and kills a process of the bottle meanwhile. The bottle then gets another keeper, or is started
    /// again.
    fn round(&self, bottle: &str, requests: usize, tally: &mut Tally) {
        let role = ["__keeper", "__egress", "__bundle"][rand::random_range(0..3)];
        tally.proxies_killed += u64::from(role != "__keeper");
        let delay = Duration::from_micros(rand::random_range(0..60_000));
        std::thread::scope(|threads| {
            threads.spawn(move || {
                std::thread::sleep(delay);
                let adopting = (role == "__keeper").then(|| self.cleaning.read());
                let struck = all_with(&self.home, role).into_iter().find(|found| found.is_of(bottle));
                struck.unwrap_or_else(|| panic!("no {role} of {bottle}")).kill();
                if role == "__keeper" {
                    // A command and the watcher adopt the bottle concurrently, and the requests that wait for tokens
                    // continue.
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

    /// Starts a bottle. Returns false if a spent budget prevents the start. The test of this bottle then ends.
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
    let scene = Scene::new(budget, "cutoff");
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
                        // If the start of this bottle was refused, the test continues with the other bottles.
                        if scene.ask(&bottle).is_none() {
                            break;
                        }
                        scene.round(&bottle, size.requests, &mut tally);
                    }
                    tally
                })
            })
            .collect();
        bottles.into_iter().map(|bottle| bottle.join().expect("a bottle")).fold(Tally::default(), Tally::add)
    });
    let Tally { whole, denied, proxies_killed } = tally;
    for number in 0..size.bottles {
        scene.run(&["stop", &format!("b{number}"), "--time", "0"]);
    }
    cleanup_leaves_nothing(&scene.home, "");
    let (records, sent) = (scene.records(), scene.model.answered());
    let ids: HashSet<&str> = records.iter().filter_map(|record| record["id"].as_str()).collect();
    assert_eq!(ids.len(), records.len(), "a record is there twice");
    let count = records.len() as u64;
    let complete: Vec<_> = records.iter().filter(|record| record["interrupted"] == false).collect();
    let figures = format!(
        "{whole} whole responses, {count} records ({} complete), {sent} sent by the model, {denied} denied, \
         {proxies_killed} proxies killed",
        complete.len()
    );
    println!("{figures}");
    assert!((whole..=sent + proxies_killed).contains(&count), "{figures}");
    assert!((whole..=sent).contains(&(complete.len() as u64)), "{figures}");
    for record in complete {
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

/// The bottle whose keeper is killed at each step of a request.
const STEPPED: &str = "stepped";

/// The requests of the first steps fit into this budget.
const SMALL_BUDGET: u64 = 1_000;

impl Scene {
    /// Sends a request from another thread while the keeper is killed at a step of the request. The watcher starts
    /// another keeper, and the request must get its complete response.
    fn asks_while(&self, path: &str, output: u64, killed_at_a_step: impl FnOnce()) {
        std::thread::scope(|threads| {
            let response = threads.spawn(|| self.ask_at(path, output, STEPPED).unwrap_or_default());
            killed_at_a_step();
            wait_until("the response", || {
                self.questions().iter().for_each(|id| drop(self.approve(id)));
                response.is_finished()
            });
            let response = response.join().expect("a request");
            assert!(response.contains("message_stop"), "{path}, {output}: {response}");
        });
    }

    fn kill_keeper(&self) {
        process_with(&self.home, "__keeper").expect("a keeper").kill();
    }

    /// Runs a command that adopts the bottle.
    fn adopt(&self) {
        let _ = self.run(&["exec", STEPPED, "--", "true"]).expect_code(0);
    }

    fn ledger(&self) -> Connection {
        let ledger = Connection::open(self.home.bottle_home().join("bottle.db")).expect("the ledger");
        ledger.busy_timeout(Duration::from_secs(5)).expect("a timeout");
        ledger
    }

    /// Prevents all processes from writing to the ledger until the connection is dropped.
    fn lock_ledger(&self) -> Connection {
        let ledger = self.ledger();
        ledger.execute_batch("BEGIN IMMEDIATE").expect("a lock");
        ledger
    }

    /// The number of top-ups in the ledger.
    fn top_ups(&self) -> i64 {
        self.ledger().query_row("SELECT count(*) FROM budgets", [], |row| row.get(0)).expect("a number")
    }

    /// The ids of the questions that wait for the user.
    fn questions(&self) -> Vec<String> {
        let listed = self.run(&["supervise", "list", "--json"]).expect_code(0).json().expect("JSON");
        let all = listed.as_array().into_iter().flatten().filter(|question| question["stale"] == false);
        all.filter_map(|question| question["id"].as_str().map(str::to_owned)).collect()
    }

    /// Waits for a question of the keeper, and returns its id.
    fn question(&self) -> String {
        let mut found = None;
        // A question is listed until its keeper is detected as dead, and later again when the next keeper asks it.
        wait_until("a question", || {
            found = self.questions().into_iter().next();
            found.is_some()
        });
        found.expect("a question")
    }

    fn approve(&self, id: &str) -> Outcome {
        self.run(&["supervise", "approve", id])
    }
}

#[test]
fn a_keeper_killed_at_each_step_of_a_request_loses_no_token() {
    let scene = Scene::new(SMALL_BUDGET, "pause");
    assert!(scene.start(STEPPED));
    let whole = |response: Option<String>| response.is_some_and(|response| response.contains("message_stop"));
    assert!(whole(scene.ask(STEPPED)));
    // Reserve: the keeper waits for the ledger.
    let locked = scene.lock_ledger();
    scene.asks_while("equal", OUTPUT, || {
        std::thread::sleep(Duration::from_millis(200));
        scene.kill_keeper();
        drop(locked);
    });
    // Forward: the request is at the model, which answers after another keeper adopted the bottle.
    let before = scene.model.answered();
    scene.asks_while("later", OUTPUT, || {
        wait_until("the model has the request", || scene.model.answered() > before);
        scene.kill_keeper();
        scene.adopt();
        scene.model.release();
    });
    // Settle: the response has arrived, and its usage is not in the ledger yet.
    assert!(whole(scene.ask(STEPPED)));
    scene.kill_keeper();
    assert_eq!(scene.top_ups(), 0, "no request needed more than the budget");
    // Pause: the request waits for the user, and the next keeper asks again.
    scene.asks_while("equal", 10_000, || {
        let question = scene.question();
        scene.kill_keeper();
        wait_until("another question", || scene.question() != question);
        assert!(
            super::listed(&scene.home, STEPPED).is_some_and(|bottle| bottle.to_string().contains("paused"))
        );
    });
    assert_eq!(scene.top_ups(), 1);
    // Top up: the user approved, and the keeper waits for the ledger.
    scene.asks_while("equal", 100_000, || {
        let (question, locked) = (scene.question(), scene.lock_ledger());
        std::thread::scope(|threads| {
            threads.spawn(|| scene.approve(&question));
            std::thread::sleep(Duration::from_millis(300));
            scene.kill_keeper();
            drop(locked);
        });
    });
    assert_eq!(
        scene.top_ups(),
        2,
        "the lost approval is asked for again, and an applied one is not repeated"
    );
    // Continue: the keeper is killed as soon as the user's approval is in the ledger.
    scene.asks_while("equal", 1_000_000, || {
        let question = scene.question();
        std::thread::scope(|threads| {
            threads.spawn(|| scene.approve(&question));
            wait_until("the top-up", || scene.top_ups() == 3);
            scene.kill_keeper();
        });
    });
    assert_eq!(scene.top_ups(), 3);
    assert!(whole(scene.ask(STEPPED)));
    scene.run(&["stop", STEPPED, "--time", "0"]);
    cleanup_leaves_nothing(&scene.home, "");
    assert_eq!(scene.records().len() as u64, scene.model.answered());
    assert_eq!(scene.spent(), scene.model.answered() * TOKENS);
}
