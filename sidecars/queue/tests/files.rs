//! Tests the queue on disk, with questions, answers, killed processes and hostile files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime};

use bottle_policy::names::Slug;
use bottle_protocol::queue::{
    Answer, Id, MAX_PENDING, MAX_TEXT, Proposal, Question, Response, Scope, Status, Tool,
};
use bottle_queue::{
    Asker, Decide, Directory, Outcome, Pending, QueueWatcher, RespondError, State, find, list, question,
};
use jiff::Timestamp;
use tempfile::TempDir;

/// The time limit for one step.
const PATIENCE: Duration = Duration::from_secs(20);

fn slug() -> Slug {
    "a-1".parse().expect("slug")
}

/// Accepts every answer, and does nothing.
#[derive(Debug)]
struct NoEffect;

impl Decide for NoEffect {
    fn decided(&self, _: Proposal, _: Response) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

fn asker(home: &TempDir) -> Asker {
    Asker::new(home.path().to_owned(), slug(), Arc::new(NoEffect))
}

fn response(id: &Id, by: &str) -> Response {
    Response {
        proposal_id: id.clone(),
        status: Status::Approved,
        notes: Some("a fixture".to_owned()),
        final_file: None,
        decided_at: Timestamp::now(),
        scope: Scope::Run,
        decided_by: by.to_owned(),
    }
}

/// Waits until `count` proposals are in the given state. Returns these proposals.
async fn until(home: &Path, state: State, count: usize) -> Vec<Pending> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut pending = list(home, Timestamp::now()).expect("a listing").pending;
        pending.retain(|pending| pending.state == state);
        if pending.len() == count {
            return pending;
        }
        assert!(Instant::now() < end, "{count} {state:?}: {pending:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn directory(home: &Path) -> PathBuf {
    home.join("queue/a-1")
}

fn names(directory: &Path) -> HashSet<String> {
    let entries = std::fs::read_dir(directory).expect("directory");
    entries.map(|entry| entry.expect("entry").file_name().into_string().expect("text")).collect()
}

#[tokio::test]
async fn asks_answers_and_archives_a_question() {
    let home = tempfile::tempdir().expect("home");
    let asked = question(Tool::GitleaksAllow, "report".to_owned(), "why".to_owned(), PATIENCE);
    let id = asked.id.clone();
    let asker = asker(&home);
    let waiting = tokio::spawn({
        let asker = asker.clone();
        async move { asker.ask(asked).await }
    });
    let [pending] = &until(home.path(), State::Waiting, 1).await[..] else { unreachable!() };
    assert_eq!((&pending.proposal.id, pending.proposal.proposed_file.as_str()), (&id, "report"));
    let file = directory(home.path()).join(format!("{id}.proposal.json"));
    assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(directory(home.path()).metadata().expect("there").permissions().mode() & 0o777, 0o700);
    let found = find(home.path(), &id).expect("looked").expect("found");
    let own = response(&id, "me");
    found.respond(&own).expect("answered");
    assert_eq!(waiting.await.expect("asked"), Answer::Decided(Box::new(own)));
    assert_eq!(names(&directory(home.path())), HashSet::from(["processed".to_owned()]));
    let archived = names(&directory(home.path()).join("processed"));
    assert_eq!(archived, HashSet::from([format!("{id}.proposal.json"), format!("{id}.response.json")]));
    assert!(matches!(found.respond(&response(&id, "late")), Err(RespondError::Gone)));
}

#[tokio::test]
async fn one_of_many_answers_wins_and_the_others_fail() {
    let home = tempfile::tempdir().expect("home");
    for _ in 0..20 {
        let asked = question(Tool::GitleaksAllow, "x".to_owned(), String::new(), PATIENCE);
        let id = asked.id.clone();
        let asker = asker(&home);
        let waiting = tokio::spawn(async move { asker.ask(asked).await });
        until(home.path(), State::Waiting, 1).await;
        let start = Barrier::new(4);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = ["a", "b", "c", "d"]
                .map(|by| {
                    let (start, id, home) = (&start, &id, home.path());
                    scope.spawn(move || {
                        let directory = Directory::open(home, &slug()).expect("directory");
                        start.wait();
                        (by, directory.respond(&response(id, by)))
                    })
                })
                .into_iter()
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
        });
        let winners: Vec<_> =
            answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(by, _)| *by).collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        for (_, answer) in &answers {
            let expected = matches!(answer, Ok(()) | Err(RespondError::Decided | RespondError::Gone));
            assert!(expected, "{answer:?}");
        }
        let Answer::Decided(decided) = waiting.await.expect("asked") else { panic!("not decided") };
        assert_eq!(decided.decided_by, winners[0]);
    }
    assert_eq!(names(&directory(home.path())).len(), 1, "nothing is left beside `processed`");
}

#[tokio::test]
async fn both_sides_agree_whether_a_late_answer_counts() {
    let home = tempfile::tempdir().expect("home");
    for round in 0..30_u64 {
        let wait = Duration::from_millis(60);
        let asked = question(Tool::GitleaksAllow, "x".to_owned(), String::new(), wait);
        let id = asked.id.clone();
        let asker = asker(&home);
        let waiting = tokio::spawn(async move { asker.ask(asked).await });
        tokio::time::sleep(Duration::from_millis(50 + round)).await;
        let taken = match find(home.path(), &id).expect("looked") {
            Some(directory) => directory.respond(&response(&id, "me")).is_ok(),
            None => false,
        };
        let decided = matches!(waiting.await.expect("asked"), Answer::Decided(_));
        assert_eq!(decided, taken);
        let left = names(&directory(home.path()));
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[tokio::test]
async fn reports_at_once_whether_an_answer_to_an_abandoned_question_counts() {
    let home = tempfile::tempdir().expect("home");
    for round in 0..40_u64 {
        let asked = question(Tool::GitleaksAllow, round.to_string(), String::new(), PATIENCE);
        let id = asked.id.clone();
        let asker = asker(&home);
        let waiting = tokio::spawn({
            let asker = asker.clone();
            async move { asker.ask(asked).await }
        });
        until(home.path(), State::Waiting, 1).await;
        waiting.abort();
        // The asker needs up to 40 ms to detect that the question was abandoned.
        tokio::time::sleep(Duration::from_millis(round)).await;
        let outcome = tokio::time::timeout(PATIENCE, asker.answer(response(&id, "me"))).await;
        if let Err(why) = outcome.expect("an outcome in time") {
            assert_eq!(why.to_string(), "this question is no longer pending");
        }
        let left = names(&directory(home.path()));
        assert!(!left.contains(&format!("{id}.response.json")), "round {round}: {left:?}");
        until(home.path(), State::Waiting, 0).await;
    }
}

/// Takes 300 ms to apply an answer.
#[derive(Debug)]
struct Slow;

impl Decide for Slow {
    fn decided(&self, _: Proposal, _: Response) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(vec!["applied".to_owned()])
        })
    }
}

#[tokio::test]
async fn completes_an_answer_after_its_asker_disconnects() {
    let home = tempfile::tempdir().expect("home");
    let asker = Asker::new(home.path().to_owned(), slug(), Arc::new(Slow));
    let asked = question(Tool::GitleaksAllow, "x".to_owned(), String::new(), PATIENCE);
    let id = asked.id.clone();
    let waiting = tokio::spawn({
        let asker = asker.clone();
        async move { asker.ask(asked).await }
    });
    until(home.path(), State::Waiting, 1).await;
    let answering = tokio::spawn(async move { asker.answer(response(&id, "me")).await });
    until(home.path(), State::Answered, 1).await;
    waiting.abort();
    let outcome = tokio::time::timeout(PATIENCE, answering).await.expect("in time").expect("answered");
    assert_eq!(outcome.expect("an outcome"), ["applied"]);
    assert_eq!(names(&directory(home.path())), HashSet::from(["processed".to_owned()]));
}

#[tokio::test]
async fn joins_equal_questions_and_limits_pending_ones() {
    let home = tempfile::tempdir().expect("home");
    let asker = asker(&home);
    let ask = |text: String| {
        let asker = asker.clone();
        tokio::spawn(
            async move { asker.ask(question(Tool::EgressAllow, text, String::new(), PATIENCE)).await },
        )
    };
    let first = ask("same".to_owned());
    let [one] = &until(home.path(), State::Waiting, 1).await[..] else { unreachable!() };
    let second = ask("same".to_owned());
    let others: Vec<_> = (1..MAX_PENDING).map(|n| ask(n.to_string())).collect();
    until(home.path(), State::Waiting, MAX_PENDING).await;
    let Answer::Refused(why) = ask("one more".to_owned()).await.expect("asked") else { panic!("taken") };
    assert!(why.contains("16 pending proposals"), "{why}");
    let directory = Directory::open(home.path(), &slug()).expect("directory");
    directory.respond(&response(&one.proposal.id, "me")).expect("answered");
    let (first, second) = (first.await.expect("asked"), second.await.expect("asked"));
    assert!(matches!(&first, Answer::Decided(_)) && first == second, "{first:?} {second:?}");
    // Abandoned questions are stale, so new questions may replace them.
    for other in others {
        other.abort();
    }
    until(home.path(), State::Stale, MAX_PENDING - 1).await;
    let (_one, _two) = (ask("new".to_owned()), ask("newer".to_owned()));
    until(home.path(), State::Waiting, 2).await;
    assert_eq!(list(home.path(), Timestamp::now()).expect("listed").pending.len(), MAX_PENDING);
}

#[tokio::test]
async fn refuses_invalid_answers() {
    let home = tempfile::tempdir().expect("home");
    let other = Id::from_random([7; 16]);
    let future = Timestamp::now() + jiff::SignedDuration::from_hours(2);
    type Make = Box<dyn Fn(&Id) -> Vec<u8>>;
    let json = |response: Response| serde_json::to_vec(&response).expect("JSON");
    let cases: [(Make, &str); 7] = [
        (Box::new(|_| b"{\"proposal_id\": \"".to_vec()), "cannot parse"),
        (Box::new(|_| Vec::new()), "cannot parse"),
        (Box::new(|_| vec![b' '; (1 << 20) + 1]), "larger than"),
        (Box::new(move |_| json(response(&other, "me"))), "another proposal"),
        (Box::new(move |id| json(Response { decided_at: future, ..response(id, "me") })), "future"),
        (Box::new(move |id| json(Response { notes: None, ..response(id, "me") })), "needs a reason"),
        (Box::new(|_| vec![0xff; 10]), "cannot parse"),
    ];
    for (make, part) in cases {
        let asked = question(Tool::GitleaksAllow, part.to_owned(), String::new(), PATIENCE);
        let id = asked.id.clone();
        let asker = asker(&home);
        let waiting = tokio::spawn(async move { asker.ask(asked).await });
        until(home.path(), State::Waiting, 1).await;
        std::fs::write(directory(home.path()).join(format!("{id}.response.json")), make(&id))
            .expect("written");
        let answer = waiting.await.expect("asked");
        assert!(matches!(&answer, Answer::Refused(why) if why.contains(part)), "{part}: {answer:?}");
    }
}

#[tokio::test]
async fn reports_hostile_entries_and_follows_no_links() {
    let home = tempfile::tempdir().expect("home");
    let outside = home.path().join("outside");
    std::fs::write(&outside, "kept").expect("written");
    Directory::make(home.path(), &slug()).expect("directory");
    let at = directory(home.path());
    let id = |n: u8| Id::from_random([n; 16]);
    let proposal = |n| at.join(format!("{}.proposal.json", id(n)));
    symlink(&outside, proposal(1)).expect("link");
    std::fs::create_dir(proposal(2)).expect("directory");
    let pipe = Command::new("mkfifo").arg(proposal(3)).status().expect("mkfifo");
    assert!(pipe.success());
    std::fs::write(proposal(4), vec![b'['; 2 << 20]).expect("written");
    std::fs::write(proposal(5), "{\"id\": ").expect("written");
    std::fs::write(at.join(format!("{}.response.json", id(6))), "{}").expect("written");
    std::fs::write(at.join("../a-1/..response.json"), "{}").expect("written");
    std::fs::write(at.join("notes.txt"), "x").expect("written");
    std::fs::write(at.join(".new-0000"), "{\"half").expect("written");
    symlink("/", home.path().join("queue/b-2")).expect("link");
    std::fs::write(home.path().join("queue/a-file"), "").expect("written");
    let listing = list(home.path(), Timestamp::now()).expect("listed");
    assert_eq!(listing.pending, []);
    let damaged: Vec<_> = listing
        .damaged
        .iter()
        .map(|damaged| damaged.path.file_name().expect("name").to_string_lossy().into_owned())
        .collect();
    assert_eq!(damaged.len(), 10, "{damaged:?}");
    let opened = Directory::open(home.path(), &slug()).expect("directory");
    for n in 1..=5 {
        assert!(opened.get(&id(n), Timestamp::now()).is_err(), "entry {n}");
    }
    // The queue does not follow a symlink that has the name of a response.
    let asked = question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE);
    let id = asked.id.clone();
    symlink(&outside, at.join(format!("{id}.response.json"))).expect("link");
    let answer = asker(&home).ask(asked).await;
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("link")), "{answer:?}");
    assert_eq!(std::fs::read_to_string(&outside).expect("read"), "kept");
}

/// A proposal is valid only if its file has the name of its id and is in the directory of its bottle.
#[tokio::test]
async fn reports_proposals_under_a_wrong_name() {
    let home = tempfile::tempdir().expect("home");
    let at = Directory::make(home.path(), &slug()).map(|_| directory(home.path())).expect("directory");
    let asked = question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE);
    let write = |name: &OsStr, slug: &str| {
        let proposal = Proposal::new(slug.parse().expect("slug"), asked.clone(), Timestamp::now());
        std::fs::write(at.join(name), serde_json::to_vec(&proposal).expect("JSON")).expect("written");
    };
    let own = format!("{}.proposal.json", asked.id);
    let other = format!("{}.proposal.json", Id::from_random([9; 16]));
    let latin = OsStr::from_bytes(b"caf\xe9.proposal.json");
    let socket = at.join(format!("{}.proposal.json", Id::from_random([8; 16])));
    let _socket = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
    write(other.as_ref(), "a-1");
    write(own.as_ref(), "b-2");
    write(latin, "a-1");
    let listing = list(home.path(), Timestamp::now()).expect("listed");
    assert_eq!(listing.pending, []);
    let mut why: Vec<_> = listing.damaged.iter().map(|damaged| damaged.why.as_str()).collect();
    why.sort_unstable();
    let [first, second] = ["its id differs from its name"; 2];
    assert_eq!(why, ["it is not a regular file", first, second, "its name is not UTF-8"]);
    // If the file has the right name, the proposal is listed.
    write(own.as_ref(), "a-1");
    let opened = Directory::open(home.path(), &slug()).expect("directory");
    let found = opened.get(&asked.id, Timestamp::now()).expect("read").expect("found");
    assert_eq!((found.proposal.id, found.state), (asked.id.clone(), State::Stale));
    assert_eq!(opened.get(&Id::from_random([7; 16]), Timestamp::now()).expect("read"), None);
}

#[tokio::test]
async fn reads_a_bounded_number_of_entries() {
    let home = tempfile::tempdir().expect("home");
    Directory::make(home.path(), &slug()).expect("directory");
    for n in 0..2_000 {
        std::fs::write(directory(home.path()).join(format!("{n}")), "").expect("written");
    }
    let damaged = list(home.path(), Timestamp::now()).expect("listed").damaged;
    assert!(damaged.len() < 1_100, "{}", damaged.len());
    assert!(damaged.iter().any(|damaged| damaged.why.contains("too many entries")));
}

#[tokio::test]
async fn refuses_questions_that_cannot_be_submitted() {
    let home = tempfile::tempdir().expect("home");
    let refused = async |asker: &Asker, question| match asker.ask(question).await {
        Answer::Refused(why) => why,
        answer => panic!("{answer:?}"),
    };
    let asker = asker(&home);
    let long = question(Tool::EgressAllow, "x".repeat(MAX_TEXT + 1), String::new(), PATIENCE);
    assert!(refused(&asker, long).await.contains("too long"));
    let vague = question(Tool::EgressAllow, "x".to_owned(), "y".repeat(MAX_TEXT + 1), PATIENCE);
    assert!(refused(&asker, vague).await.contains("too long"));
    assert!(!home.path().join("queue").exists(), "nothing was written");
    // An asker of an earlier process used the same id for another question.
    let asked = question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE);
    let abandoned = tokio::time::timeout(Duration::from_millis(300), asker.ask(asked.clone())).await;
    assert!(abandoned.is_err());
    until(home.path(), State::Stale, 1).await;
    let another = Asker::new(home.path().to_owned(), slug(), Arc::new(NoEffect));
    let taken = Question { proposed_file: "y".to_owned(), ..asked };
    assert!(refused(&another, taken).await.contains("another proposal has this id"));
}

#[tokio::test]
async fn a_proposal_that_was_removed_is_refused() {
    let home = tempfile::tempdir().expect("home");
    let asked = question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE);
    let file = directory(home.path()).join(format!("{}.proposal.json", asked.id));
    let asker = asker(&home);
    let waiting = tokio::spawn(async move { asker.ask(asked).await });
    until(home.path(), State::Waiting, 1).await;
    std::fs::remove_file(file).expect("removed");
    let answer = waiting.await.expect("asked");
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("was removed")), "{answer:?}");
}

#[tokio::test]
async fn removes_what_killed_writers_left_after_a_minute() {
    let home = tempfile::tempdir().expect("home");
    let at = Directory::make(home.path(), &slug()).map(|_| directory(home.path())).expect("directory");
    let write = |name: &str, age: u64| {
        let file = std::fs::File::create(at.join(name)).expect("made");
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("dated");
    };
    write(".new-old", 120);
    write(".new-young", 5);
    let answer =
        asker(&home).ask(question(Tool::EgressAllow, "x".to_owned(), String::new(), Duration::ZERO)).await;
    assert_eq!(answer, Answer::Expired);
    assert_eq!(names(&at), HashSet::from(["processed".to_owned(), ".new-young".to_owned()]));
}

#[tokio::test]
async fn the_watcher_reports_each_change_once() {
    let home = tempfile::tempdir().expect("home");
    let mut watcher = QueueWatcher::new(home.path().to_owned());
    // The first call of `poll` reports the empty queue.
    assert!(
        watcher.poll(Timestamp::now()).expect("looked").is_some_and(|listing| listing.pending.is_empty())
    );
    let asked = question(Tool::GitleaksAllow, "report".to_owned(), "why".to_owned(), PATIENCE);
    let asker = asker(&home);
    let waiting = tokio::spawn(async move { asker.ask(asked).await });
    let mut next = async |state: &[State]| {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = watcher.poll(Timestamp::now()).expect("looked") {
                let states: Vec<State> = found.pending.iter().map(|pending| pending.state).collect();
                if states == state {
                    return;
                }
            }
            assert!(Instant::now() < end, "{state:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    next(&[State::Waiting]).await;
    waiting.abort();
    next(&[State::Stale]).await;
    std::fs::remove_dir_all(directory(home.path())).expect("removed");
    next(&[]).await;
    // The pause is long enough for the watcher to read all directories.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(watcher.poll(Timestamp::now()).expect("looked"), None);
    std::fs::remove_dir(home.path().join("queue")).expect("removed");
    std::fs::write(home.path().join("queue"), "").expect("written");
    assert!(watcher.poll(Timestamp::now()).is_err());
}

#[tokio::test]
async fn refuses_with_the_cause_if_the_queue_is_unusable() {
    let home = tempfile::tempdir().expect("home");
    std::fs::write(home.path().join("queue"), "").expect("written");
    let answer = asker(&home).ask(question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE)).await;
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("cannot use the queue")), "{answer:?}");
}

/// Acts as the keeper in a separate process. Asks a question, and waits for the answer. Does nothing in an ordinary
/// test run.
#[tokio::test]
async fn asks_as_a_separate_process() {
    let Some(home) = std::env::var_os("QUEUE_TEST_HOME") else { return };
    let text = std::env::var("QUEUE_TEST_TEXT").expect("text");
    let mut asked = question(Tool::GitleaksAllow, text, String::new(), PATIENCE);
    asked.id = "01010101-0101-4101-8101-010101010101".parse().expect("id");
    Asker::new(home.into(), slug(), Arc::new(NoEffect)).ask(asked).await;
}

fn asking_process(home: &TempDir, text: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "asks_as_a_separate_process"])
        .env("QUEUE_TEST_HOME", home.path())
        .env("QUEUE_TEST_TEXT", text)
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

#[tokio::test]
async fn a_killed_asker_leaves_a_stale_proposal_that_the_next_one_resumes() {
    let home = tempfile::tempdir().expect("home");
    let mut first = asking_process(&home, "x");
    let [pending] = &until(home.path(), State::Waiting, 1).await[..] else { unreachable!() };
    let directory = Directory::open(home.path(), &slug()).expect("directory");
    assert!(matches!(directory.dismiss(&pending.proposal.id), Err(RespondError::Unfit(_))));
    first.kill().expect("killed");
    first.wait().expect("reaped");
    until(home.path(), State::Stale, 1).await;
    // After a keeper is killed, the bundle sends the same question to the next keeper, which uses the same file.
    let mut second = asking_process(&home, "x");
    until(home.path(), State::Waiting, 1).await;
    directory.respond(&response(&pending.proposal.id, "me")).expect("answered");
    assert!(second.wait().expect("ended").success());
    assert_eq!(names(&self::directory(home.path())).len(), 1);
    // If the keeper is killed while it writes a proposal, the proposal's file is complete or does not exist.
    for pause in 0..15 {
        let mut asking = asking_process(&home, "y");
        tokio::time::sleep(Duration::from_millis(pause * 2)).await;
        asking.kill().expect("killed");
        asking.wait().expect("reaped");
        assert_eq!(list(home.path(), Timestamp::now()).expect("listed").damaged, []);
    }
    let mut last = asking_process(&home, "z");
    let listing = list(home.path(), Timestamp::now()).expect("listed");
    if let [left] = &listing.pending[..] {
        let _ = directory.dismiss(&left.proposal.id);
    }
    last.kill().expect("killed");
    last.wait().expect("reaped");
}

/// A rejected question is not immediately shown again, even if the agent words it differently. A question about a
/// different host is shown immediately.
#[tokio::test]
async fn delays_a_rejected_question() {
    let home = tempfile::tempdir().expect("home");
    let asker = asker(&home);
    let ask = |tool, host: &str| {
        let question = question(tool, format!("- host: {host}\n"), "again".to_owned(), PATIENCE * 2);
        let asker = asker.clone();
        tokio::spawn(async move { asker.ask(question).await })
    };
    let first = ask(Tool::EgressAllow, "evil.example");
    let shown = until(home.path(), State::Waiting, 1).await;
    assert_eq!(shown[0].proposal.asked_before, 0);
    let rejected = Response { status: Status::Rejected, ..response(&shown[0].proposal.id, "a user") };
    let begun = Instant::now();
    asker.answer(rejected).await.expect("rejected");
    assert!(matches!(first.await.expect("asked"), Answer::Decided(_)));
    let again = ask(Tool::EgressBlock, "evil.example");
    let abandoned = ask(Tool::EgressAllow, "evil.example\n  matches: [{methods: [GET]}]");
    let other = ask(Tool::EgressAllow, "other.example");
    let shown = until(home.path(), State::Waiting, 1).await;
    assert!(shown[0].proposal.proposed_file.contains("other"), "{shown:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(until(home.path(), State::Waiting, 1).await, shown);
    abandoned.abort();
    other.abort();
    until(home.path(), State::Waiting, 0).await;
    let shown = until(home.path(), State::Waiting, 1).await;
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(shown[0].proposal.tool == Tool::EgressBlock && shown[0].proposal.asked_before >= 1, "{shown:?}");
    again.abort();
}

/// When `propose` returns successfully, the question of the user is in the queue, without a cooldown. Otherwise, the
/// error states why the question is not in the queue.
#[tokio::test]
async fn a_question_of_the_user_is_queued_at_once_or_refused() {
    let home = tempfile::tempdir().expect("home");
    let asker = asker(&home);
    let host =
        |name: &str| question(Tool::EgressAllow, format!("- host: {name}\n"), "x".to_owned(), PATIENCE);
    let listed = || list(home.path(), Timestamp::now()).expect("listed").pending;
    for asked_before in 0..2 {
        let answer = tokio::spawn(asker.propose(host("evil.example")).await.expect("queued"));
        let shown = listed();
        assert_eq!((shown.len(), shown[0].proposal.asked_before), (1, asked_before));
        let joined = asker.propose(host("evil.example")).await.expect("joined");
        assert_eq!(listed(), shown);
        let rejected = Response { status: Status::Rejected, ..response(&shown[0].proposal.id, "a user") };
        asker.answer(rejected).await.expect("rejected");
        assert!(matches!(answer.await.expect("answered"), Answer::Decided(_)));
        assert!(matches!(joined.await, Answer::Decided(_)));
    }
    let delayed = tokio::spawn({
        let asker = asker.clone();
        async move { asker.ask(host("evil.example")).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(asker.propose(host("evil.example")).await.expect("joins the question of the agent"));
    assert_eq!(listed(), [], "the question of the agent has a cooldown");
    delayed.abort();

    let waiting: Vec<_> = futures_of(&asker, MAX_PENDING).await;
    let why = asker.propose(host("more.example")).await.err().expect("refused");
    assert!(why.contains("pending proposals"), "{why}");
    drop(waiting);
    let unwritable = tempfile::tempdir().expect("home");
    std::fs::write(unwritable.path().join("queue"), "no directory").expect("written");
    let refused = self::asker(&unwritable).propose(host("one.example")).await;
    assert!(refused.is_err(), "the directory cannot be created");
}

/// Asks `count` questions on behalf of the user.
async fn futures_of(asker: &Asker, count: usize) -> Vec<impl Future<Output = Answer> + use<>> {
    let mut waiting = Vec::new();
    for n in 0..count {
        let asked = question(Tool::EgressAllow, n.to_string(), String::new(), PATIENCE);
        waiting.push(asker.propose(asked).await.expect("queued"));
    }
    waiting
}
