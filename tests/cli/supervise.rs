//! Tests proposals of bottles, and the user's answers.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_protocol::queue::{Answer, Id, Proposal, Question, Response, Status, Tool};
use bottle_queue::{Asker, Decide, Listing, Outcome, State};
use bottle_test_support::home::TestHome;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::home::{home, run, snapshot, transcripts};

/// Applies a decision by doing nothing.
#[derive(Debug)]
struct Alone;

impl Decide for Alone {
    fn decided(&self, _: Proposal, _: Response) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// A thread that has made a proposal and waits for the answer, as a keeper does. Dropping the value makes the proposal
/// stale.
pub(crate) struct Asking {
    answer: JoinHandle<Option<Answer>>,
    gives_up: mpsc::SyncSender<()>,
    home: PathBuf,
}

impl Asking {
    /// Makes a proposal. Returns when the proposal can be answered.
    pub(crate) fn begin(home: &TestHome, slug: &str, question: Question) -> Result<Self> {
        let (gives_up, given_up) = mpsc::sync_channel(1);
        let asker = Asker::new(home.bottle_home(), slug.parse()?, Arc::new(Alone));
        let file = home.bottle_home().join(format!("queue/{slug}/{}.proposal.json", question.id));
        let answer = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().ok()?;
            let asked = runtime.spawn(async move { asker.ask(question).await });
            loop {
                if asked.is_finished() {
                    return runtime.block_on(asked).ok();
                }
                match given_up.recv_timeout(Duration::from_millis(20)) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    _ => asked.abort(),
                }
            }
        });
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { answer, gives_up, home: home.bottle_home() })
    }

    pub(crate) fn answered(self) -> Result<Answer> {
        self.answer.join().ok().flatten().context("an answer")
    }

    pub(crate) fn give_up(self) {
        drop(self.gives_up);
        let _ = self.answer.join();
        // A process that another test has just forked holds the lock until it calls exec.
        let waits = |listing: Listing| listing.pending.iter().any(|there| there.state == State::Waiting);
        while bottle_queue::list(&self.home, Timestamp::now()).is_ok_and(waits) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) fn question(number: u8, tool: Tool, why: &str) -> Question {
    Question {
        id: Id::from_random([number; 16]),
        tool,
        proposed_file: "{\n  \"host\": \"api.example.com\",\n  \"finding\": \"a GitHub token, 40 bytes\"\n}"
            .to_owned(),
        justification: why.to_owned(),
        excerpt: Vec::new(),
        revision: None,
        expires_at: Timestamp::now() + SignedDuration::from_mins(330),
    }
}

#[test]
fn lists_shows_and_answers_proposals() -> Result<()> {
    let home = home()?;
    let held = Question {
        excerpt: ["POST https://api.example.com/v1", "the body:", "  use [redacted] \u{1b}[2J to log in"]
            .map(str::to_owned)
            .into(),
        ..question(0xa1, Tool::EgressTokenAllow, "POST api.example.com/v1 holds what may be a secret")
    };
    let push = question(0xb2, Tool::GitleaksAllow, "a push to work holds 1 thing that may be a secret");
    let held = Asking::begin(&home, "one", held)?;
    let push = Asking::begin(&home, "two", push)?;
    snapshot!(transcripts(
        &home,
        &[
            &["supervise"],
            &["supervise", "show", "a1a1"],
            &["supervise", "approve", "a1a1"],
            &["supervise", "approve", "a1a1", "--reason", "a fixture of the tests"],
            &["supervise", "approve", "a1a1", "--reason", "once more"],
            &["supervise", "reject", "b2b2", "--reason", "take it out", "--json"],
            &["supervise", "list"],
            &["supervise", "show", "b2"],
            &["supervise", "show", "b2b2"],
        ],
    )?);
    let Answer::Decided(yes) = held.answered()? else { anyhow::bail!("it was decided") };
    assert_eq!((yes.status, yes.notes.as_deref()), (Status::Approved, Some("a fixture of the tests")));
    let Answer::Decided(no) = push.answered()? else { anyhow::bail!("it was decided") };
    assert_eq!((no.status, no.notes.as_deref()), (Status::Rejected, Some("take it out")));
    assert!(!no.decided_by.is_empty());
    Ok(())
}

/// An approval on the command line names the number of findings that it covers.
#[test]
fn several_findings_are_approved_by_their_number() -> Result<()> {
    let home = home()?;
    let findings: Vec<_> =
        (0..96).map(|line| json!({"file": "f", "line": line, "rule": "github-pat"})).collect();
    let report = json!({"findings": findings, "refs": ["refs/heads/main"], "repository": "work"});
    let push = Question {
        proposed_file: format!("{report:#}"),
        ..question(0xb7, Tool::GitleaksAllow, "a push to work holds 96 things that may be secrets")
    };
    let push = Asking::begin(&home, "two", push)?;
    let shown = run(&home, &["supervise", "show", "b7b7"])?.expect_code(0);
    ensure!(shown.stdout.matches("\"rule\": \"github-pat\"").count() == 96, "{}", shown.stdout);
    ensure!(shown.stderr.contains("--findings 96"), "{}", shown.stderr);
    let approve = ["supervise", "approve", "b7b7", "--reason", "fixtures"];
    for more in [&[][..], &["--findings", "39"]] {
        let refused = run(&home, &[&approve[..], more].concat())?.expect_code(2);
        ensure!(refused.stderr.contains("this approves 96 findings"), "{}", refused.stderr);
    }
    let _ = run(&home, &[&approve[..], &["--findings", "96"]].concat())?.expect_code(0);
    let Answer::Decided(yes) = push.answered()? else { anyhow::bail!("it was decided") };
    ensure!(yes.status == Status::Approved);
    Ok(())
}

#[test]
fn dismisses_stale_proposals_and_escapes_hostile_text() -> Result<()> {
    let home = home()?;
    let why = "\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[2Jall is well\nand \u{202e}more";
    Asking::begin(&home, "one", question(0xc3, Tool::EgressTokenAllow, why))?.give_up();
    home.write("home/.bottle/queue/one/nonsense", "x")?;
    snapshot!(transcripts(
        &home,
        &[
            &["supervise"],
            &["supervise", "show", "c3c3"],
            &["supervise", "approve", "c3c3", "--reason", "why not"],
            &["supervise", "reject", "c3c3", "--reason", "gone"],
            &["supervise", "list", "--json"],
        ],
    )?);
    Ok(())
}

#[test]
fn of_two_answers_the_first_counts() -> Result<()> {
    let home = home()?;
    for round in 0..4 {
        let asking = Asking::begin(&home, "one", question(round, Tool::GitleaksAllow, "a push"))?;
        let id = Id::from_random([round; 16]);
        let codes: Vec<u8> = std::thread::scope(|scope| {
            let one = |verb: &'static str| {
                let (home, id) = (&home, &id);
                scope.spawn(move || {
                    run(home, &["supervise", verb, id.as_str(), "--reason", verb]).map(|outcome| outcome.code)
                })
            };
            let both = [one("approve"), one("reject")];
            both.into_iter()
                .map(|one| one.join().expect("ran").map(|code| u8::try_from(code).unwrap_or(255)))
                .collect::<Result<_>>()
        })?;
        let Answer::Decided(response) = asking.answered()? else { anyhow::bail!("it was decided") };
        let won = if response.status == Status::Approved { 0 } else { 1 };
        assert_eq!(codes[won], 0, "{codes:?}");
        // The other command failed, because the proposal was already answered or had ended.
        assert_ne!(codes[1 - won], 0, "{codes:?}");
    }
    Ok(())
}

/// A proposal of routes, for a bottle that may or may not exist.
pub(crate) fn hosts(number: u8) -> Question {
    let proposed_file = "- host: api.example.com\n  matches:\n  - methods:\n    - GET\n".to_owned();
    Question { proposed_file, ..question(number, Tool::EgressAllow, "the tests need it") }
}

#[test]
fn saves_an_approval_only_to_an_unambiguous_file_of_the_user() -> Result<()> {
    let mut home = home()?;
    home.bottle("more", "---\nenv: {A: b}\n---\n")?;
    let _ = run(
        &home,
        &["start", "nap", "--bottle", "nap", "--bottle", "more", "--detach", "--label", "one", "-q", "-y"],
    )?
    .expect_code(0);
    let _two = Asking::begin(&home, "one", hosts(0xd1))?;
    let _none = Asking::begin(&home, "none", hosts(0xe1))?;
    let _report = Asking::begin(&home, "one", question(0xf1, Tool::GitleaksAllow, "a push"))?;
    snapshot!(transcripts(
        &home,
        &[
            &["supervise", "approve", "d1d1", "--scope", "save"],
            &["supervise", "approve", "e1e1", "--scope", "save"],
            &["supervise", "approve", "d1d1", "--scope", "save:claude"],
            &["supervise", "approve", "d1d1", "--scope", "save:../more"],
            &["supervise", "approve", "d1d1", "--scope", "ever"],
            &["supervise", "approve", "f1f1", "--scope", "save", "--reason", "x"],
            &["supervise", "approve", "f1f1", "--scope", "once", "--reason", "x"],
            // The change of the file was shown. Nothing is written, because the keeper does not know the
            // proposal.
            &["supervise", "approve", "d1d1", "--scope", "save:more"],
        ],
    )?);
    let more = std::fs::read_to_string(home.bottle_home().join("bottles/more.md"))?;
    assert_eq!(more, "---\nenv: {A: b}\n---\n", "nothing was allowed, and nothing is written");
    Ok(())
}
