//! Decides whether one push is accepted, and forwards it. Begins when receive-pack's pre-receive hook
//! connects, and ends with the upstream's response.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::queue::{Answer, Status, Tool};
use bottle_queue::question;
use bottle_scan::Severity;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::agent_messages::{self, Failure};
use crate::daemon::Gate;
use crate::findings::{Found, PushFindings};
use crate::git::Git;
use crate::push_scan;
use crate::refs::{MOST_UPDATES, RefError, Update, check_alias, check_lookalikes, check_update};
use crate::refusal::{Block, Refusal, SHOWN};
use crate::repo::Repo;
use crate::upstream::Upstream;

/// The time limit for the local git command that checks for a fast-forward. After it, the push is refused.
const STEP_WITHIN: Duration = Duration::from_secs(120);

/// The maximum number of bytes that a pre-receive hook may send. A push whose hook sends more is refused.
/// [`crate::push_head`] limits the number of updates separately.
const MOST_HOOK_BYTES: u64 = 1 << 20;

/// The gate's ends of the two pipes to the pre-receive hook of one push.
pub(crate) struct Hook {
    pub(crate) request: OwnedFd,
    pub(crate) reply: OwnedFd,
}

/// Waits for the pre-receive hook of a push, and sends it the verdict.
pub(crate) async fn serve(gate: Arc<Gate>, repo: Arc<Repo>, hook: Hook) {
    let (request, reply) = (Receiver::from_owned_fd(hook.request), Sender::from_owned_fd(hook.reply));
    let (Ok(request), Ok(reply)) = (request, reply) else { return };
    // git runs no hook for a push without ref updates.
    let Some((quarantine, updates)) = read_request(BufReader::new(request)).await else { return };
    tracing::Span::current().record("refs", updates.as_ref().map(Vec::len));
    let mut push = Push { gate: &gate, repo: &repo, quarantine, reply };
    let verdict = match push.decide(updates).await {
        Ok(()) => "accepted",
        Err(refusal) => {
            for line in refusal.sentence().lines() {
                push.send_line(line).await;
            }
            "refused"
        }
    };
    tracing::debug!(verdict, "decided");
    // If the hook has exited, it has already refused the push.
    let _ = push.reply.write_all(format!("{verdict}\n").as_bytes()).await;
}

/// Reads the hook's request, which consists of the quarantine folder and the ref updates. `None` if the hook
/// exits early or sends more than [`MOST_HOOK_BYTES`]. The updates are `None` if one of them does not parse
/// or if there are too many.
async fn read_request(hook: impl tokio::io::AsyncBufRead + Unpin) -> Option<(String, Option<Vec<Update>>)> {
    let mut lines = hook.take(MOST_HOOK_BYTES).lines();
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
    /// The folder with the new objects; empty if the push only deletes refs.
    quarantine: String,
    reply: Sender,
}

impl Push<'_> {
    /// Sends one line of text to the agent. Errors are ignored, because the client may have disconnected.
    async fn send_line(&mut self, line: &str) {
        let line = line.replace('\n', " ");
        let _ = self.reply.write_all(format!("say {line}\n").as_bytes()).await;
    }

    /// Checks the ref rules, scans the objects, requests approval if needed, and forwards the push.
    async fn decide(&mut self, updates: Option<Vec<Update>>) -> Result<(), Refusal> {
        let repo = self.repo;
        let updates = updates.ok_or(Refusal::Updates)?;
        self.check_lock()?;
        self.scan_ref_names(&*repo.upstream().await?, &updates)?;
        let mut turn = repo.pushing.lock().await;
        self.check_refs(&*repo.upstream().await?, &updates).await?;
        if !self.quarantine.is_empty() {
            let mut findings = PushFindings::default();
            let (scanner, fds) = (&self.gate.scanner, &self.gate.fds);
            let read =
                push_scan::read_push(&repo.git, &self.quarantine, &updates, scanner, fds, &mut findings)
                    .await;
            tracing::debug!(read = read.is_ok(), findings = findings.found.len(), "scanned");
            // Hits are counted even if the push is refused for another reason, because the duration of the
            // scan may reveal a hit.
            for (secret, value) in findings.found.iter().filter_map(|found| found.hit) {
                self.count_hit(secret, &value);
            }
            self.check_lock()?;
            read?;
            let found = self.assess(findings)?;
            if !found.is_empty() {
                // Other pushes may proceed while the user decides, so this push is then checked against the
                // current state of the upstream.
                drop(turn);
                self.request_approval(found, &updates).await?;
                turn = repo.pushing.lock().await;
                self.check_refs(&*repo.upstream().await?, &updates).await?;
            }
        }
        let forwarded = self.forward(&updates).await;
        drop(turn);
        forwarded
    }

    /// Scans the names of all refs in the push, including refs to delete, because the names are sent
    /// upstream.
    fn scan_ref_names(&self, upstream: &Upstream, updates: &[Update]) -> Result<(), Refusal> {
        let is_new = |update: &&Update| !upstream.refs.contains_key(&update.name);
        for update in updates.iter().filter(is_new) {
            let report = self.gate.scanner.scan(update.name.as_bytes());
            for finding in &report.findings {
                let value = &update.name.as_bytes()[finding.span.within(update.name.len())];
                finding.secret.into_iter().for_each(|secret| self.count_hit(secret, value));
            }
            self.check_lock()?;
            if report.worst() == Some(Severity::Block) {
                return Err(Refusal::RefName);
            }
        }
        Ok(())
    }

    /// Counts a hit on one of the gate's real credentials, for the lock-out. A hit on a secret that the agent
    /// has too is not counted.
    fn count_hit(&self, secret: usize, value: &[u8]) {
        if secret < self.gate.credential_count {
            self.gate.lockout.hit(secret, value, &self.repo.name);
        }
    }

    /// Refuses every push while the bottle is locked.
    fn check_lock(&self) -> Result<(), Refusal> {
        if self.gate.lockout.is_locked() { Err(Refusal::Locked) } else { Ok(()) }
    }

    /// Applies the ref rules, including the fast-forward check.
    async fn check_refs(&self, upstream: &Upstream, updates: &[Update]) -> Result<(), Refusal> {
        check_lookalikes(upstream, updates)?;
        for update in updates {
            check_update(&self.repo.rules, upstream, &self.repo.name, update)?;
            if !self.repo.has_created(&update.name) {
                check_alias(&self.repo.rules, upstream, &self.repo.name, update)?;
            }
            if !self.repo.rules.force && !update.creates() && !update.deletes() {
                let arguments = ["merge-base", "--is-ancestor", &update.old, &update.new];
                let forward = self.git().run(&self.gate.fds, &arguments, STEP_WITHIN).await?;
                if !forward.success {
                    let (name, repo) = (update.name.clone(), self.repo.name.clone());
                    return Err(RefError::Force { name, repo }.into());
                }
            }
        }
        Ok(())
    }

    /// Returns a [`Git`] that sees the objects of the push, if there are any.
    fn git(&self) -> Git {
        if self.quarantine.is_empty() {
            return self.repo.git.clone();
        }
        push_scan::with_quarantine(&self.repo.git, &self.quarantine)
    }

    /// Returns the findings that need the user's approval; empty if the push is allowed. An error blocks the
    /// push.
    fn assess(&self, findings: PushFindings) -> Result<Vec<Found>, Refusal> {
        let repo = self.repo;
        let PushFindings { mut found, more } = findings;
        found.retain(|found| found.known || !repo.is_approved(&found.fingerprint));
        if found.iter().any(|found| found.known) {
            found.retain(|found| found.known);
            // A mark would reveal which lines a match touches, and repeated findings would reveal how many
            // guesses in a file match.
            found.iter_mut().for_each(|found| found.marked = None);
            found.dedup_by(|next, kept| (&next.commit, &next.location) == (&kept.commit, &kept.location));
            return Err(Refusal::Secrets { found, more, reason: Block::Known });
        }
        if !more && !repo.supervise && found.iter().any(|found| found.marked.is_none()) {
            found.retain(|found| found.marked.is_none());
        } else if !more {
            return Ok(found);
        }
        Err(Refusal::Secrets { found, more, reason: Block::Unapproved })
    }

    /// Requests the user's approval for all findings, and stores it for later pushes.
    async fn request_approval(&mut self, found: Vec<Found>, updates: &[Update]) -> Result<(), Refusal> {
        let reason = match self.gate.approval_timeout {
            None => Block::ApprovalOff,
            Some(wait) => match self.ask(&found, updates, wait).await {
                Answer::Decided(response) if response.status == Status::Approved => {
                    self.repo.approve(found.iter().map(|found| found.fingerprint));
                    self.send_line("the user approved the push").await;
                    return Ok(());
                }
                Answer::Decided(response) => {
                    let notes = agent_messages::lines(&response.notes.unwrap_or_default()).join(" ");
                    Block::Rejected { notes }
                }
                Answer::Expired => Block::Undecided,
                Answer::Refused(cause) => Block::NotAsked(cause),
            },
        };
        Err(Refusal::Secrets { found, more: false, reason })
    }

    /// Sends the question to the user, and informs the agent.
    async fn ask(&mut self, found: &[Found], updates: &[Update], wait: Duration) -> Answer {
        self.send_line("the git gate found what may be a secret; this push waits for the user's approval")
            .await;
        for one in found.iter().take(SHOWN) {
            self.send_line(&one.to_string()).await;
        }
        let things = if found.len() == 1 { "thing" } else { "things" };
        let why = format!("a push to {} holds {} {things} that may be a secret", self.repo.name, found.len());
        let question = question(Tool::GitleaksAllow, self.report(found, updates), why, wait);
        self.gate.questions.ask(question).await
    }

    /// The report for the user, which contains no values of secrets.
    fn report(&self, found: &[Found], updates: &[Update]) -> String {
        let refs: Vec<&str> = updates.iter().map(|update| update.name.as_str()).collect();
        let found: Vec<_> = found
            .iter()
            .map(|found| {
                json!({
                    "rule": found.rule, "finding": found.preview, "commit": found.commit,
                    "file": found.location, "line": found.line, "marked": found.marked,
                })
            })
            .collect();
        let report = json!({"repository": self.repo.name, "refs": refs, "findings": found});
        serde_json::to_string_pretty(&report).unwrap_or_default()
    }

    /// Sends the push to the upstream as one atomic update.
    async fn forward(&mut self, updates: &[Update]) -> Result<(), Refusal> {
        let repo = self.repo;
        // The bottle may have been locked while this push waited.
        self.check_lock()?;
        // The push is not forwarded if the client has disconnected.
        if self.reply.write_all(b"there\n").await.is_err() {
            return Err(Refusal::Disconnected);
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
        let env = self.git().env;
        let pushed = repo.run_upstream(&self.gate.fds, arguments, &env, self.gate.forward).await;
        let pushed = pushed.map_err(|source| Refusal::Unconfirmed { repo: repo.name.clone(), source })?;
        for line in agent_messages::lines(&pushed.stderr) {
            if let Some(remote) = line.strip_prefix("remote: ") {
                self.send_line(remote).await;
            }
        }
        if pushed.success {
            repo.record_pushed(updates);
            return Ok(());
        }
        let output = String::from_utf8_lossy(&pushed.stdout);
        // git prints one line for each ref (git-push(1), "OUTPUT").
        let rejected: Vec<String> = agent_messages::lines(&output)
            .into_iter()
            .filter_map(|line| Some(line.strip_prefix("!\t")?.replace('\t', " ")))
            .collect();
        let stale = rejected.iter().any(|line| line.ends_with("(stale info)"));
        let words = if rejected.is_empty() {
            Failure::parse(&pushed.stderr).to_string()
        } else {
            rejected.join("\n")
        };
        Err(Refusal::Rejected { repo: repo.name.clone(), words, stale })
    }
}
