//! One push, between receive-pack's hook and the upstream.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::lock_out;
use bottle_contract::queue::{Answer, Status, Tool};
use bottle_queue::question;
use bottle_scan::Severity;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::Sender;

use crate::daemon::Gate;
use crate::findings::{Found, Reading};
use crate::git;
use crate::messages;
use crate::read;
use crate::refs::{MOST_UPDATES, Update, disguised, judge, twins};
use crate::repo::Repo;
use crate::upstream::Upstream;

/// A local step of git.
const STEP_WITHIN: Duration = Duration::from_secs(120);

/// What the hook may say; [`crate::head`] lets as many updates through as may be.
const ASKED: u64 = 1 << 20;

/// Findings that are told one by one.
const TOLD: usize = 20;

/// What to do about a finding that stays refused.
const TAKE_IT_OUT: &str = "take it out of every commit that has it (`git rebase -i`), and push again";

/// The gate's ends of the pipes to a hook.
pub(crate) struct Hook {
    pub(crate) ask: OwnedFd,
    pub(crate) tell: OwnedFd,
}

/// Waits for the hook of a push and answers it.
pub(crate) async fn serve(gate: Arc<Gate>, repo: Arc<Repo>, hook: Hook) {
    let (Ok(ask), Ok(tell)) = (git::reader(hook.ask), git::writer(hook.tell)) else { return };
    // A push without anything to decide never gets to its hook.
    let Some((quarantine, updates)) = asked(BufReader::new(ask)).await else { return };
    let mut push = Push { gate: &gate, repo: &repo, quarantine, tell };
    let word = match push.decide(updates).await {
        Ok(()) => "accepted",
        Err(why) => {
            for line in why.lines() {
                push.say(line).await;
            }
            "refused"
        }
    };
    // A hook that is gone has refused.
    let _ = push.tell.write_all(format!("{word}\n").as_bytes()).await;
}

/// What the hook says. None: it ended before it had said it all, or said too much.
async fn asked(hook: impl tokio::io::AsyncBufRead + Unpin) -> Option<(String, Option<Vec<Update>>)> {
    let mut lines = hook.take(ASKED).lines();
    let quarantine = lines.next_line().await.ok()??;
    let mut updates = Some(Vec::new());
    loop {
        let line = lines.next_line().await.ok()??;
        if line == "end" {
            return Some((quarantine, updates));
        }
        match (Update::parse(&line), &mut updates) {
            (Some(update), Some(all)) if all.len() < MOST_UPDATES => all.push(update),
            _ => updates = None,
        }
    }
}

struct Push<'a> {
    gate: &'a Gate,
    repo: &'a Repo,
    /// Where the new objects are; empty when nothing but deletions is pushed.
    quarantine: String,
    tell: Sender,
}

impl Push<'_> {
    /// Tells the agent a line; nobody may be there to read it.
    async fn say(&mut self, line: &str) {
        let line = line.replace('\n', " ");
        let _ = self.tell.write_all(format!("say {line}\n").as_bytes()).await;
    }

    /// The whole of it, in order. The error is for the agent, several lines at most.
    async fn decide(&mut self, updates: Option<Vec<Update>>) -> Result<(), String> {
        let repo = self.repo;
        let updates = updates
            .ok_or_else(|| format!("the git gate takes at most {MOST_UPDATES} refs in a push; push fewer"))?;
        self.locked_out()?;
        self.read_names(&*repo.upstream().await?, &updates)?;
        let mut turn = repo.pushing.lock().await;
        self.judge(&*repo.upstream().await?, &updates).await?;
        if !self.quarantine.is_empty() {
            let mut reading = Reading::default();
            let (scanner, passage) = (&self.gate.scanner, &self.gate.passage);
            let read =
                read::read(&repo.git, &self.quarantine, &updates, scanner, passage, &mut reading).await;
            // Also of a push that is refused for another reason: how long that took may tell what was found.
            for (secret, value) in reading.found.iter().filter_map(|found| found.hit) {
                self.count(secret, &value);
            }
            self.locked_out()?;
            read.map_err(|why| format!("the git gate refused the push: {why}"))?;
            let found = self.weigh(reading)?;
            if !found.is_empty() {
                // Others push while a user thinks; after that the upstream is another one.
                drop(turn);
                self.ask(&found, &updates).await?;
                turn = repo.pushing.lock().await;
                self.judge(&*repo.upstream().await?, &updates).await?;
            }
        }
        let forwarded = self.forward(&updates).await;
        drop(turn);
        forwarded
    }

    /// Names of refs go upstream as well, also of those that are to be deleted there.
    fn read_names(&self, upstream: &Upstream, updates: &[Update]) -> Result<(), String> {
        let there = |update: &&Update| !upstream.refs.contains_key(&update.name);
        for update in updates.iter().filter(there) {
            let report = self.gate.scanner.scan(update.name.as_bytes());
            for finding in &report.findings {
                let value = &update.name.as_bytes()[finding.span.within(update.name.len())];
                finding.secret.into_iter().for_each(|secret| self.count(secret, value));
            }
            self.locked_out()?;
            if report.worst() == Some(Severity::Block) {
                return Err(
                    "the git gate refused the push: the name of a ref holds what looks like a secret; \
                            choose another name"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// Counts a hit on a credential that the agent does not hold.
    fn count(&self, secret: usize, value: &[u8]) {
        if secret < self.gate.guarded {
            self.gate.lockout.hit(secret, value, &self.repo.name);
        }
    }

    /// Refuses every push while the bottle is locked.
    fn locked_out(&self) -> Result<(), String> {
        if self.gate.lockout.is_locked() { Err(lock_out::SENTENCE.to_owned()) } else { Ok(()) }
    }

    /// The rules over refs.
    async fn judge(&self, upstream: &Upstream, updates: &[Update]) -> Result<(), String> {
        let refused = |why: String| format!("the git gate refused the push: {why}");
        twins(upstream, updates).map_err(refused)?;
        for update in updates {
            judge(&self.repo.rules, upstream, &self.repo.name, update).map_err(refused)?;
            if !self.repo.made(&update.name) {
                disguised(&self.repo.rules, upstream, &self.repo.name, update).map_err(refused)?;
            }
            if !self.repo.rules.force && !update.creates() && !update.deletes() {
                let arguments = ["merge-base", "--is-ancestor", &update.old, &update.new];
                let git = read::both(&self.repo.git, &self.quarantine);
                let git = if self.quarantine.is_empty() { &self.repo.git } else { &git };
                let forward = git.plain(&self.gate.passage, &arguments, STEP_WITHIN).await;
                if !forward.map_err(|error| refused(error.to_string()))?.good {
                    return Err(refused(format!(
                        "{} would lose commits that the upstream has; merge or rebase, or the user can allow \
                         it with `git-gate.repos.{}.refs.force` in the bottle",
                        update.name, self.repo.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// What the findings mean: the end, or what a user is to be asked about; nothing is a good answer.
    fn weigh(&self, reading: Reading) -> Result<Vec<Found>, String> {
        let repo = self.repo;
        let Reading { mut found, more } = reading;
        found.retain(|found| found.known || !repo.approved(&found.fingerprint));
        if found.iter().any(|found| found.known) {
            found.retain(|found| found.known);
            // Marks say which lines a match touches, and repeats how many of a file's guesses match.
            found.iter_mut().for_each(|found| found.marked = None);
            found.dedup_by(|next, kept| (&next.commit, &next.place) == (&kept.commit, &kept.place));
            let next = "a secret of this bottle never passes; take it out of every commit, and push again";
            return Err(refused(&found, more, next));
        }
        if more {
            return Err(refused(&found, more, TAKE_IT_OUT));
        }
        if !repo.supervise {
            let unmarked: Vec<Found> = found.iter().filter(|found| found.marked.is_none()).cloned().collect();
            if !unmarked.is_empty() {
                return Err(refused(&unmarked, more, TAKE_IT_OUT));
            }
        }
        Ok(found)
    }

    /// Asks a user whether all of it may pass, and remembers a yes.
    async fn ask(&mut self, found: &[Found], updates: &[Update]) -> Result<(), String> {
        let repo = self.repo;
        let no = |next: &str| Err(refused(found, false, next));
        let Some(wait) = self.gate.ask else {
            return no(&format!("nobody is there to decide (`supervise: false`); {TAKE_IT_OUT}"));
        };
        self.say("the git gate found what may be a secret; a user is asked, and this push waits").await;
        for one in found.iter().take(TOLD) {
            self.say(&describe(one)).await;
        }
        let things = if found.len() == 1 { "thing" } else { "things" };
        let why = format!("a push to {} holds {} {things} that may be a secret", repo.name, found.len());
        let asked = question(Tool::GitleaksAllow, self.report(found, updates), why, wait);
        match self.gate.questions.ask(asked).await {
            Answer::Decided(response) if response.status == Status::Approved => {
                repo.approve(found.iter().map(|found| found.fingerprint));
                self.say("the user let it pass").await;
                Ok(())
            }
            Answer::Decided(response) => {
                let notes = response.notes.unwrap_or_default();
                let said = messages::lines(&notes).join(" ");
                let said = if said.is_empty() { String::new() } else { format!(", saying: {said}") };
                no(&format!("the user said no{said}; {TAKE_IT_OUT}"))
            }
            Answer::Expired => {
                no("nobody decided in time; push again when somebody is there, or take it out")
            }
            Answer::Refused(cause) => no(&format!("nobody could be asked: {cause}; {TAKE_IT_OUT}")),
        }
    }

    /// What the user sees: everything but the values.
    fn report(&self, found: &[Found], updates: &[Update]) -> String {
        let refs: Vec<&str> = updates.iter().map(|update| update.name.as_str()).collect();
        let found: Vec<_> = found
            .iter()
            .map(|found| {
                json!({
                    "rule": found.rule, "finding": found.preview, "commit": found.commit,
                    "file": found.place, "line": found.line, "marked": found.marked,
                })
            })
            .collect();
        let report = json!({"repository": self.repo.name, "refs": refs, "findings": found});
        serde_json::to_string_pretty(&report).unwrap_or_default()
    }

    /// The same push to upstream, all or nothing.
    async fn forward(&mut self, updates: &[Update]) -> Result<(), String> {
        let repo = self.repo;
        // It may have waited for long.
        self.locked_out()?;
        // Whoever pushed may have gone away meanwhile; then nothing is to be pushed any more.
        if self.tell.write_all(b"there\n").await.is_err() {
            return Err("who pushed is gone".to_owned());
        }
        let mut arguments: Vec<String> =
            ["push", "--atomic", "--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
                .map(str::to_owned)
                .into();
        for update in updates {
            let old = if update.creates() { "" } else { update.old.as_str() };
            arguments.push(format!("--force-with-lease={}:{old}", update.name));
        }
        arguments.extend(["--".to_owned(), repo.url.clone()]);
        for update in updates {
            let new = if update.deletes() { "" } else { update.new.as_str() };
            arguments.push(format!("{new}:{}", update.name));
        }
        let env =
            if self.quarantine.is_empty() { Vec::new() } else { read::both(&repo.git, &self.quarantine).env };
        let pushed = repo.go_up(&self.gate.passage, arguments, &env, self.gate.forward).await;
        let pushed = pushed.map_err(|error| {
            format!(
                "the upstream of {} did not take the push: {error}; see whether it did, and push again",
                repo.name
            )
        })?;
        for line in messages::lines(&pushed.complaint) {
            if let Some(theirs) = line.strip_prefix("remote: ") {
                self.say(theirs).await;
            }
        }
        if pushed.good {
            repo.pushed(updates);
            return Ok(());
        }
        let output = String::from_utf8_lossy(&pushed.output);
        let rejected: Vec<String> = messages::lines(&output)
            .into_iter()
            .filter_map(|line| Some(line.strip_prefix("!\t")?.replace('\t', " ")))
            .collect();
        let cause =
            if rejected.is_empty() { messages::cause(&pushed.complaint) } else { rejected.join("\n") };
        let next = if cause.contains("stale info") {
            "somebody else pushed it meanwhile; fetch, merge or rebase, and push again"
        } else {
            "nothing of it is there; do what it says, or tell the user, and push again"
        };
        Err(format!("the upstream of {} refused the push:\n{cause}\n{next}", repo.name))
    }
}

/// The refusal of what was found, as lines for the agent, the last of them what to do next.
fn refused(found: &[Found], more: bool, next: &str) -> String {
    let mut lines = vec!["the git gate refused the push: it holds what may not leave".to_owned()];
    lines.extend(found.iter().take(TOLD).map(describe));
    if found.len() > TOLD || more {
        lines.push("... and more".to_owned());
    }
    lines.push(next.to_owned());
    lines.join("\n")
}

fn describe(found: &Found) -> String {
    let line = found.line.map(|line| format!(", line {line}")).unwrap_or_default();
    let commit = found.commit.as_deref().map(|id| format!(" in commit {}", &id[..id.len().min(12)]));
    let marked = found.marked.map(|mark| format!(" (marked by {mark})")).unwrap_or_default();
    format!(
        "  {}{line}{}: {}: {}{marked}",
        found.place,
        commit.unwrap_or_default(),
        found.rule,
        found.preview
    )
}
