//! The queue on disk: as the keeper asks, as a user answers, and as somebody hostile leaves it.

use std::collections::HashSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bottle_contract::names::Slug;
use bottle_contract::queue::{Answer, Id, MAX_PENDING, Proposal, Response, Scope, Status, Tool};
use bottle_queue::{
    Asker, Decide, Folder, Looks, Outcome, Pending, RespondError, State, find, list, question,
};
use jiff::Timestamp;
use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn slug() -> Slug {
    "a-1".parse().expect("slug")
}

/// An answer brings nothing but itself.
#[derive(Debug)]
struct Alone;

impl Decide for Alone {
    fn decided(&self, _: Proposal, _: Response) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

fn asker(home: &TempDir) -> Asker {
    Asker::new(home.path().to_owned(), slug(), Arc::new(Alone))
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

/// Waits until so many proposals are in this state.
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

fn folder(home: &Path) -> PathBuf {
    home.join("queue/a-1")
}

fn names(folder: &Path) -> HashSet<String> {
    let entries = std::fs::read_dir(folder).expect("folder");
    entries.map(|entry| entry.expect("entry").file_name().into_string().expect("text")).collect()
}

#[tokio::test]
async fn a_question_is_asked_answered_and_archived() {
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
    let file = folder(home.path()).join(format!("{id}.proposal.json"));
    assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(folder(home.path()).metadata().expect("there").permissions().mode() & 0o777, 0o700);
    let found = find(home.path(), &id).expect("looked").expect("found");
    let own = response(&id, "me");
    found.respond(&own).expect("answered");
    assert_eq!(waiting.await.expect("asked"), Answer::Decided(Box::new(own)));
    assert_eq!(names(&folder(home.path())), HashSet::from(["processed".to_owned()]));
    let archived = names(&folder(home.path()).join("processed"));
    assert_eq!(archived, HashSet::from([format!("{id}.proposal.json"), format!("{id}.response.json")]));
    assert!(matches!(found.respond(&response(&id, "late")), Err(RespondError::Gone)));
}

#[tokio::test]
async fn of_many_who_answer_one_wins_and_the_others_are_told() {
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
                        let folder = Folder::open(home, &slug()).expect("folder");
                        start.wait();
                        (by, folder.respond(&response(id, by)))
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
            let told = matches!(answer, Ok(()) | Err(RespondError::Decided | RespondError::Gone));
            assert!(told, "{answer:?}");
        }
        let Answer::Decided(decided) = waiting.await.expect("asked") else { panic!("not decided") };
        assert_eq!(decided.decided_by, winners[0]);
    }
    assert_eq!(names(&folder(home.path())).len(), 1, "nothing is left beside `processed`");
}

#[tokio::test]
async fn an_answer_at_the_last_moment_is_known_to_both_or_to_neither() {
    let home = tempfile::tempdir().expect("home");
    for round in 0..30_u64 {
        let wait = Duration::from_millis(60);
        let asked = question(Tool::GitleaksAllow, "x".to_owned(), String::new(), wait);
        let id = asked.id.clone();
        let asker = asker(&home);
        let waiting = tokio::spawn(async move { asker.ask(asked).await });
        tokio::time::sleep(Duration::from_millis(50 + round)).await;
        let taken = match find(home.path(), &id).expect("looked") {
            Some(folder) => folder.respond(&response(&id, "me")).is_ok(),
            None => false,
        };
        let decided = matches!(waiting.await.expect("asked"), Answer::Decided(_));
        assert_eq!(decided, taken);
        let left = names(&folder(home.path()));
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[tokio::test]
async fn who_answers_while_the_asker_goes_is_told_what_counts_and_at_once() {
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
        // It is noticed within 40 ms that nobody waits.
        tokio::time::sleep(Duration::from_millis(round)).await;
        let outcome = tokio::time::timeout(PATIENCE, asker.answer(response(&id, "me"))).await;
        if let Err(why) = outcome.expect("told") {
            assert_eq!(why, "nobody waits for this answer any more");
        }
        let left = names(&folder(home.path()));
        assert!(!left.contains(&format!("{id}.response.json")), "round {round}: {left:?}");
        until(home.path(), State::Waiting, 0).await;
    }
}

/// Takes its time.
#[derive(Debug)]
struct Slow;

impl Decide for Slow {
    fn decided(&self, _: Proposal, _: Response) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(vec!["carried out".to_owned()])
        })
    }
}

#[tokio::test]
async fn an_answer_that_is_being_carried_out_outlives_who_asked() {
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
    let outcome = tokio::time::timeout(PATIENCE, answering).await.expect("told").expect("answered");
    assert_eq!(outcome, Ok(vec!["carried out".to_owned()]));
    assert_eq!(names(&folder(home.path())), HashSet::from(["processed".to_owned()]));
}

#[tokio::test]
async fn equal_questions_are_one_and_no_more_wait_than_may() {
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
    assert!(why.contains("16 proposals"), "{why}");
    let folder = Folder::open(home.path(), &slug()).expect("folder");
    folder.respond(&response(&one.proposal.id, "me")).expect("answered");
    let (first, second) = (first.await.expect("asked"), second.await.expect("asked"));
    assert!(matches!(&first, Answer::Decided(_)) && first == second, "{first:?} {second:?}");
    // Nobody waits any more: they are stale, and make place for what is asked now.
    for other in others {
        other.abort();
    }
    until(home.path(), State::Stale, MAX_PENDING - 1).await;
    let (_one, _two) = (ask("new".to_owned()), ask("newer".to_owned()));
    until(home.path(), State::Waiting, 2).await;
    assert_eq!(list(home.path(), Timestamp::now()).expect("listed").pending.len(), MAX_PENDING);
}

#[tokio::test]
async fn what_cannot_be_an_answer_refuses() {
    let home = tempfile::tempdir().expect("home");
    let other = Id::from_random([7; 16]);
    let future = Timestamp::now() + jiff::SignedDuration::from_hours(2);
    type Make = Box<dyn Fn(&Id) -> Vec<u8>>;
    let json = |response: Response| serde_json::to_vec(&response).expect("JSON");
    let cases: [(Make, &str); 7] = [
        (Box::new(|_| b"{\"proposal_id\": \"".to_vec()), "cannot be read"),
        (Box::new(|_| Vec::new()), "cannot be read"),
        (Box::new(|_| vec![b' '; (1 << 20) + 1]), "larger than"),
        (Box::new(move |_| json(response(&other, "me"))), "another proposal"),
        (Box::new(move |id| json(Response { decided_at: future, ..response(id, "me") })), "future"),
        (Box::new(move |id| json(Response { notes: None, ..response(id, "me") })), "needs a reason"),
        (Box::new(|_| vec![0xff; 10]), "cannot be read"),
    ];
    for (make, part) in cases {
        let asked = question(Tool::GitleaksAllow, part.to_owned(), String::new(), PATIENCE);
        let id = asked.id.clone();
        let asker = asker(&home);
        let waiting = tokio::spawn(async move { asker.ask(asked).await });
        until(home.path(), State::Waiting, 1).await;
        std::fs::write(folder(home.path()).join(format!("{id}.response.json")), make(&id)).expect("written");
        let answer = waiting.await.expect("asked");
        assert!(matches!(&answer, Answer::Refused(why) if why.contains(part)), "{part}: {answer:?}");
    }
}

#[tokio::test]
async fn hostile_folders_are_reported_and_followed_nowhere() {
    let home = tempfile::tempdir().expect("home");
    let outside = home.path().join("outside");
    std::fs::write(&outside, "kept").expect("written");
    Folder::make(home.path(), &slug()).expect("folder");
    let at = folder(home.path());
    let id = |n: u8| Id::from_random([n; 16]);
    let proposal = |n| at.join(format!("{}.proposal.json", id(n)));
    symlink(&outside, proposal(1)).expect("link");
    std::fs::create_dir(proposal(2)).expect("folder");
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
    // A proposal that is moved under a link's name by whoever owns the folder is never written through.
    let asked = question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE);
    let id = asked.id.clone();
    symlink(&outside, at.join(format!("{id}.response.json"))).expect("link");
    let answer = asker(&home).ask(asked).await;
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("link")), "{answer:?}");
    assert_eq!(std::fs::read_to_string(&outside).expect("read"), "kept");
}

#[tokio::test]
async fn looks_find_what_comes_goes_and_is_given_up_and_say_nothing_between() {
    let home = tempfile::tempdir().expect("home");
    let mut looks = Looks::at(home.path().to_owned());
    // Nothing is news as well, once.
    assert!(looks.look(Timestamp::now()).expect("looked").is_some_and(|listing| listing.pending.is_empty()));
    let asked = question(Tool::GitleaksAllow, "report".to_owned(), "why".to_owned(), PATIENCE);
    let asker = asker(&home);
    let waiting = tokio::spawn(async move { asker.ask(asked).await });
    let mut next = async |state: &[State]| {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = looks.look(Timestamp::now()).expect("looked") {
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
    std::fs::remove_dir_all(folder(home.path())).expect("removed");
    next(&[]).await;
    // Long enough for everything to be read anew.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(looks.look(Timestamp::now()).expect("looked"), None);
    std::fs::remove_dir(home.path().join("queue")).expect("removed");
    std::fs::write(home.path().join("queue"), "").expect("written");
    assert!(looks.look(Timestamp::now()).is_err());
}

#[tokio::test]
async fn a_queue_that_cannot_be_used_refuses_with_the_cause() {
    let home = tempfile::tempdir().expect("home");
    std::fs::write(home.path().join("queue"), "").expect("written");
    let answer = asker(&home).ask(question(Tool::EgressAllow, "x".to_owned(), String::new(), PATIENCE)).await;
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("cannot be used")), "{answer:?}");
}

/// Plays the keeper that is killed: asks until it is.
#[tokio::test]
async fn asks_when_told_to() {
    let Some(home) = std::env::var_os("QUEUE_TEST_HOME") else { return };
    let text = std::env::var("QUEUE_TEST_TEXT").expect("text");
    let mut asked = question(Tool::GitleaksAllow, text, String::new(), PATIENCE);
    asked.id = "01010101-0101-4101-8101-010101010101".parse().expect("id");
    Asker::new(home.into(), slug(), Arc::new(Alone)).ask(asked).await;
}

fn asking_process(home: &TempDir, text: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "asks_when_told_to"])
        .env("QUEUE_TEST_HOME", home.path())
        .env("QUEUE_TEST_TEXT", text)
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

#[tokio::test]
async fn a_killed_asker_leaves_it_stale_and_the_next_one_goes_on() {
    let home = tempfile::tempdir().expect("home");
    let mut first = asking_process(&home, "x");
    let [pending] = &until(home.path(), State::Waiting, 1).await[..] else { unreachable!() };
    let folder = Folder::open(home.path(), &slug()).expect("folder");
    assert!(matches!(folder.dismiss(&pending.proposal.id), Err(RespondError::Unfit(_))));
    first.kill().expect("killed");
    first.wait().expect("reaped");
    until(home.path(), State::Stale, 1).await;
    // The bundle asks the next keeper the same: it waits for the same file.
    let mut second = asking_process(&home, "x");
    until(home.path(), State::Waiting, 1).await;
    folder.respond(&response(&pending.proposal.id, "me")).expect("answered");
    assert!(second.wait().expect("ended").success());
    assert_eq!(names(&self::folder(home.path())).len(), 1);
    // Killed while it writes, at any moment: whole or not there.
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
        let _ = folder.dismiss(&left.proposal.id);
    }
    last.kill().expect("killed");
    last.wait().expect("reaped");
}

/// What was rejected is not shown again at once, however it is put; what was not asked before is.
#[tokio::test]
async fn what_was_rejected_waits_before_it_is_shown_again() {
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
    let given_up = ask(Tool::EgressAllow, "evil.example\n  matches: [{methods: [GET]}]");
    let other = ask(Tool::EgressAllow, "other.example");
    let shown = until(home.path(), State::Waiting, 1).await;
    assert!(shown[0].proposal.proposed_file.contains("other"), "{shown:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(until(home.path(), State::Waiting, 1).await, shown);
    given_up.abort();
    other.abort();
    until(home.path(), State::Waiting, 0).await;
    let shown = until(home.path(), State::Waiting, 1).await;
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(shown[0].proposal.tool == Tool::EgressBlock && shown[0].proposal.asked_before >= 1, "{shown:?}");
    again.abort();
}
