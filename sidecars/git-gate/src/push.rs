//! Decides whether one push is accepted, and forwards an accepted push. The decision begins when receive-pack's
//! pre-receive hook sends its request. The push ends with the upstream's response.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bottle_protocol::queue::{Answer, Status, Tool};
use bottle_queue::question;
use bottle_scan::{Pieces, Severity};
use bottle_text::terminal::inert;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::agent_messages::{self, Failure};
use crate::findings::{Found, PushFindings};
use crate::gate::Gate;
use crate::git::Git;
use crate::push_options::{self, OptionError};
use crate::push_reader;
use crate::push_scan::{self, Detectors};
use crate::received::UnpackTurn;
use crate::refs::{MOST_UPDATES, RefError, Update, check_alias, check_lookalikes, check_update};
use crate::refusal::{Block, Refusal, SHOWN};
use crate::repo::Repo;
use crate::report_status::Reasons;
use crate::search::Search;
use crate::upstream::Upstream;

/// The time limit for the local git command that checks for a fast-forward. When the limit is reached, the push is
/// refused.
const STEP_WITHIN: Duration = Duration::from_secs(120);

/// The maximum number of bytes that a pre-receive hook may send. If the hook sends more, the push is refused.
/// [`crate::push_head`] limits the number of updates separately.
const MOST_HOOK_BYTES: u64 = 1 << 20;

/// The gate's ends of the two pipes to the pre-receive hook of one push, and the state that this task shares with the
/// task that sends the response.
pub(crate) struct Hook {
    pub(crate) request: OwnedFd,
    pub(crate) reply: OwnedFd,
    pub(crate) reasons: Reasons,
    /// The permit to unpack and scan this push.
    pub(crate) turn: Arc<UnpackTurn>,
}

/// Waits for the request of a push's pre-receive hook, and sends the verdict to the hook.
pub(crate) async fn serve(gate: Arc<Gate>, repo: Arc<Repo>, hook: Hook) {
    let (request, reply) = (Receiver::from_owned_fd(hook.request), Sender::from_owned_fd(hook.reply));
    let (Ok(request), Ok(reply)) = (request, reply) else { return };
    // git runs no hook for a push without ref updates.
    let Some(HookRequest { quarantine, options, updates }) = read_request(BufReader::new(request)).await
    else {
        return;
    };
    tracing::Span::current().record("refs", updates.as_ref().ok().map(Vec::len));
    let Hook { reasons, turn, .. } = hook;
    let search = gate.searches.current();
    let mut push = Push { gate: &gate, repo: &repo, search, quarantine, options, reply, reasons, turn };
    let (verdict, report) = match push.decide(updates).await {
        Ok(results) => ("accepted", proc_receive_report(&results)),
        Err(refusal) => {
            for line in refusal.sentence().lines() {
                push.send_line(line).await;
            }
            ("refused", Vec::new())
        }
    };
    tracing::debug!(verdict, "decided");
    // If the hook has exited, it has already refused the push.
    let _ = push.reply.write_all(format!("{verdict}\n").as_bytes()).await;
    let _ = push.reply.write_all(&report).await;
}

/// Returns the reason in a summary such as `[remote rejected] (hook declined)`.
fn reason(summary: &str) -> &str {
    // The parenthesis is missing if the summary is cut off.
    let reason = summary.split_once("] (").map(|(_, rest)| rest.strip_suffix(')').unwrap_or(rest));
    reason.unwrap_or(summary)
}

/// The upstream's result for one ref of a push.
struct RefResult {
    name: String,
    /// The summary with which the upstream refused the ref. `None` if the upstream accepted the ref.
    refused: Option<String>,
}

impl RefResult {
    /// Returns the name of the ref and the upstream's reason, if the upstream refused the ref.
    fn reason(&self) -> Option<(String, String)> {
        Some((self.name.clone(), reason(self.refused.as_ref()?).to_owned()))
    }
}

/// Encodes the results for receive-pack, which passes the results on to the client (githooks(5), "proc-receive").
fn proc_receive_report(results: &[RefResult]) -> Vec<u8> {
    let packet = |line: String| format!("{:04x}{line}", line.len() + 4);
    let lines = results.iter().map(|RefResult { name, refused }| match refused {
        None => packet(format!("ok {name}\n")),
        Some(why) => packet(format!("ng {name} {}\n", reason(why))),
    });
    let report: String = lines.collect();
    format!("{}0000{report}0000", packet("version=1\n".to_owned())).into_bytes()
}

/// The request that the pre-receive hook sends.
struct HookRequest {
    /// The directory with the new objects. Empty if the push only deletes refs.
    quarantine: String,
    options: Result<Vec<String>, OptionError>,
    updates: Result<Vec<Update>, Refusal>,
}

/// Reads the hook's request. Returns `None` if the hook exits early or sends more than [`MOST_HOOK_BYTES`].
async fn read_request(hook: impl tokio::io::AsyncBufRead + Unpin) -> Option<HookRequest> {
    let mut lines = hook.take(MOST_HOOK_BYTES).split(b'\n');
    let quarantine = String::from_utf8(lines.next_segment().await.ok()??).ok()?;
    let mut request = HookRequest { quarantine, options: Ok(Vec::new()), updates: Ok(Vec::new()) };
    loop {
        let line = lines.next_segment().await.ok()??;
        if line == b"end" {
            return Some(request);
        }
        if let Some(option) = line.strip_prefix(b"option ") {
            match (std::str::from_utf8(option), &mut request.options) {
                (Ok(option), Ok(all)) => all.push(option.to_owned()),
                (Err(_), options) => *options = Err(OptionError::Encoding),
                _ => {}
            }
            continue;
        }
        match (std::str::from_utf8(&line), &mut request.updates) {
            (Ok(line), Ok(all)) => match Update::parse(line) {
                Some(update) if all.len() < MOST_UPDATES => all.push(update),
                _ => request.updates = Err(Refusal::Updates),
            },
            (Err(_), Ok(_)) => {
                let name = line.splitn(3, |byte| *byte == b' ').nth(2).unwrap_or_default();
                request.updates = Err(Refusal::RefEncoding(inert(&String::from_utf8_lossy(name))));
            }
            _ => {}
        }
    }
}

struct Push<'a> {
    gate: &'a Gate,
    repo: &'a Repo,
    /// The search that applied when the push arrived.
    search: Arc<Search>,
    /// The directory with the new objects. Empty if the push only deletes refs.
    quarantine: String,
    options: Result<Vec<String>, OptionError>,
    reply: Sender,
    reasons: Reasons,
    turn: Arc<UnpackTurn>,
}

impl Push<'_> {
    /// Sends one line of text to the agent. Errors are ignored, because the client may have disconnected.
    async fn send_line(&mut self, line: &str) {
        let line = line.replace('\n', " ");
        let _ = self.reply.write_all(format!("say {line}\n").as_bytes()).await;
    }

    /// Checks the ref rules, scans the objects, requests approval if needed, and forwards the push.
    async fn decide(&mut self, updates: Result<Vec<Update>, Refusal>) -> Result<Vec<RefResult>, Refusal> {
        let repo = self.repo;
        let updates = updates?;
        self.check_lock().await?;
        self.scan_ref_names(&*repo.upstream().await?, &updates).await?;
        let options = self.check_options(&updates).await?;
        self.check_refs(&*repo.upstream().await?, &updates).await?;
        let found = if self.quarantine.is_empty() { Vec::new() } else { self.scan(&updates).await? };
        // Other pushes may proceed while the user decides and the upstream answers.
        self.turn.end();
        if !found.is_empty() {
            self.request_approval(found, &updates).await?;
        }
        let _pushing = repo.pushing.lock().await;
        // The upstream may have changed since the first check.
        self.check_refs(&*repo.upstream().await?, &updates).await?;
        self.forward(&updates, &options).await
    }

    /// Scans the objects of the push. Returns the findings that need the user's approval.
    async fn scan(&self, updates: &[Update]) -> Result<Vec<Found>, Refusal> {
        let mut findings = PushFindings::default();
        let (git, fds) = (&self.repo.git, &self.gate.fds);
        let detectors =
            Detectors { scanner: &self.search.scanner, has_rules: self.gate.searches.has_rules() };
        let read = push_scan::read_push(git, &self.quarantine, updates, detectors, fds, &mut findings).await;
        tracing::debug!(read = read.is_ok(), findings = findings.found.len(), "scanned");
        // Hits are counted even if the push is refused for another reason, because the duration of the scan may
        // reveal a hit.
        findings.hits.iter().for_each(|(secret, pieces)| self.count_hits(Some(*secret), pieces));
        self.check_lock().await?;
        read?;
        self.assess(findings)
    }

    /// Scans the names of all refs in the push that the upstream does not have, including refs to delete, because the
    /// names are sent upstream.
    async fn scan_ref_names(&self, upstream: &Upstream, updates: &[Update]) -> Result<(), Refusal> {
        let is_new = |update: &&Update| !upstream.refs.contains_key(&update.name);
        for update in updates.iter().filter(is_new) {
            if self.has_secret(&update.name).await? {
                return Err(Refusal::RefName);
            }
        }
        Ok(())
    }

    /// Scans and checks the push options, because they are sent upstream. Returns the options.
    async fn check_options(&self, updates: &[Update]) -> Result<Vec<String>, Refusal> {
        let options = self.options.clone()?;
        for option in &options {
            if self.has_secret(option).await? {
                return Err(OptionError::Secret.into());
            }
            push_options::check(option)?;
        }
        updates.iter().try_for_each(|update| push_options::check_ref(&update.name))?;
        Ok(options)
    }

    /// Returns whether a text that is sent upstream contains a secret. Also counts hits for the lock-out.
    async fn has_secret(&self, text: &str) -> Result<bool, Refusal> {
        let report = self.search.scanner.scan(text.as_bytes());
        report.findings.iter().for_each(|finding| self.count_hits(finding.secret, &finding.pieces));
        self.check_lock().await?;
        Ok(report.worst() == Some(Severity::Block))
    }

    /// Counts the pieces of a secret for the lock-out if the secret is one of the gate's real credentials. A hit on a
    /// secret that the agent also has is not counted.
    fn count_hits(&self, secret: Option<usize>, pieces: &Pieces) {
        if secret.is_some_and(|secret| secret < self.search.credential_count) {
            pieces.counted().for_each(|piece| self.gate.lockout.hit(piece, &self.repo.name));
        }
    }

    /// Fails if the bottle is locked. First waits until all reported pieces are counted.
    async fn check_lock(&self) -> Result<(), Refusal> {
        if self.gate.lockout.settled().await { Err(Refusal::Locked) } else { Ok(()) }
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

    /// Returns a [`Git`] that sees the objects of the mirror and the new objects of the push, if there are any.
    fn git(&self) -> Git {
        if self.quarantine.is_empty() {
            return self.repo.git.clone();
        }
        push_reader::with_quarantine(&self.repo.git, &self.quarantine)
    }

    /// Returns the findings that need the user's approval. Returns no findings if the push is allowed, and an error if
    /// the push is blocked.
    fn assess(&self, findings: PushFindings) -> Result<Vec<Found>, Refusal> {
        let repo = self.repo;
        let PushFindings { mut found, more, .. } = findings;
        found.retain(|found| found.known || !repo.is_approved(&found.fingerprint));
        if found.iter().any(|found| found.known) {
            found.retain(|found| found.known);
            // The mark of a finding would reveal which lines a match touches. The number of findings at one location,
            // and whether it exceeds the limit, would reveal how many guesses match. The refusal therefore omits all of
            // them.
            found.iter_mut().for_each(|found| found.marked = None);
            found.dedup_by(|next, kept| (&next.commit, &next.location) == (&kept.commit, &kept.location));
            return Err(Refusal::Secrets { found, more: false, reason: Block::Known });
        }
        if !more && !repo.supervise && found.iter().any(|found| found.marked.is_none()) {
            found.retain(|found| found.marked.is_none());
        } else if !more {
            return Ok(found);
        }
        Err(Refusal::Secrets { found, more, reason: Block::Unapproved })
    }

    /// Requests the user's approval for all findings, and stores an approval for later pushes.
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

    /// Returns the report for the user. The report contains no values of secrets.
    fn report(&self, found: &[Found], updates: &[Update]) -> String {
        let refs: Vec<&str> = updates.iter().map(|update| update.name.as_str()).collect();
        let found: Vec<_> = found
            .iter()
            .map(|found| {
                json!({
                    "rule": found.rule, "finding": found.preview, "commit": found.commit,
                    "file": found.location, "line": found.line, "marked": found.marked,
                    "excerpt": found.excerpt,
                })
            })
            .collect();
        let report = json!({"repository": self.repo.name, "refs": refs, "findings": found});
        serde_json::to_string_pretty(&report).unwrap_or_default()
    }

    /// Sends the push to the upstream. If the upstream supports atomic pushes, it updates either all refs or no ref.
    /// Otherwise, the result also contains the refs that the upstream refused. An error means that the upstream updated
    /// no ref, except [`Refusal::Unconfirmed`]: after this error, the result is unknown.
    async fn forward(&mut self, updates: &[Update], options: &[String]) -> Result<Vec<RefResult>, Refusal> {
        let repo = self.repo;
        // The bottle may have been locked while this push waited.
        self.check_lock().await?;
        // If the client has disconnected, the write fails and the push is not forwarded.
        if self.reply.write_all(b"there\n").await.is_err() {
            return Err(Refusal::Disconnected);
        }
        let arguments = self.push_arguments(updates, options);
        let env = self.git().env;
        let pushed = repo.run_upstream(&self.gate.fds, arguments, &[], &env, self.gate.forward).await;
        let pushed = pushed.map_err(|source| Refusal::Unconfirmed { repo: repo.name.clone(), source })?;
        for line in agent_messages::lines(&pushed.stderr) {
            if let Some(remote) = line.strip_prefix("remote: ") {
                self.send_line(remote).await;
            }
        }
        let output = String::from_utf8_lossy(&pushed.stdout);
        let results = ref_results(&output, updates, pushed.success);
        let accepted: Vec<&Update> = updates
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.refused.is_none())
            .map(|(u, _)| u)
            .collect();
        if accepted.is_empty() {
            let refused: Vec<String> = results
                .iter()
                .filter_map(|RefResult { name, refused }| Some(format!("{name}: {}", refused.as_ref()?)))
                .collect();
            let is_listed = output.lines().any(|line| line.starts_with("!\t"));
            let words = if is_listed {
                let reasons = results.iter().filter_map(RefResult::reason).collect();
                // The result is ignored: no other code sets the reasons of this push.
                let _ = self.reasons.set(reasons);
                refused.join("\n")
            } else {
                Failure::parse(&pushed.stderr).to_string()
            };
            let stale = refused.iter().any(|line| line.ends_with("(stale info)"));
            return Err(Refusal::Rejected { repo: repo.name.clone(), words, stale });
        }
        repo.record_pushed(&accepted);
        if accepted.len() < updates.len() {
            let (name, all) = (&repo.name, updates.len());
            let line = format!(
                "the upstream of {name} accepted {} of {all} refs; it cannot push all or none",
                accepted.len()
            );
            self.send_line(&line).await;
        }
        Ok(results)
    }

    /// Returns the arguments of the git command that pushes to the upstream. A push of a single ref does not need
    /// `--atomic`.
    fn push_arguments(&self, updates: &[Update], options: &[String]) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["push", "--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
                .map(str::to_owned)
                .into();
        if updates.len() > 1 && self.repo.features().atomic {
            arguments.push("--atomic".to_owned());
        }
        arguments.extend(options.iter().map(|option| format!("--push-option={option}")));
        for update in updates {
            let old = if update.creates() { "" } else { update.old.as_str() };
            arguments.push(format!("--force-with-lease={}:{old}", update.name));
        }
        arguments.extend(["--".to_owned(), self.repo.url.clone()]);
        for update in updates {
            let new = if update.deletes() { "" } else { update.new.as_str() };
            arguments.push(format!("{new}:{}", update.name));
        }
        arguments
    }
}

/// Parses the results of the refs from git's output. The output has one line for each ref, which contains a flag, both
/// names of the ref, and a summary, separated by tabs (git-push(1), "OUTPUT").
fn ref_results(output: &str, updates: &[Update], success: bool) -> Vec<RefResult> {
    let result = |update: &Update| {
        let name = update.name.clone();
        let line = output.lines().find_map(|line| {
            let (flag, rest) = line.split_once('\t')?;
            let (names, summary) = rest.split_once('\t')?;
            (names.split_once(':')?.1 == name).then_some((flag, summary))
        });
        let refused = match line {
            Some(("!", summary)) => Some(agent_messages::lines(summary).join(" ")),
            Some(_) => None,
            None if success => None,
            None => Some("the upstream did not report a result".to_owned()),
        };
        RefResult { name, refused }
    };
    updates.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_results_of_the_refs() {
        let update = |name: &str| Update { old: "0".repeat(40), new: "1".repeat(40), name: name.to_owned() };
        let updates = ["refs/heads/a", "refs/heads/b", "refs/heads/c"].map(update);
        let output = "To ssh://x\n*\t1111:refs/heads/a\t[new branch]\n!\t1111:refs/heads/b\t[remote rejected] (hook declined)\n";
        let results = ref_results(output, &updates, false);
        let refused: Vec<Option<&str>> = results.iter().map(|result| result.refused.as_deref()).collect();
        assert_eq!(
            refused,
            [None, Some("[remote rejected] (hook declined)"), Some("the upstream did not report a result")]
        );
        assert!(ref_results("", &updates, true).iter().all(|result| result.refused.is_none()));
        let report = String::from_utf8(proc_receive_report(&results[..1])).expect("text");
        assert_eq!(report, "000eversion=1\n00000014ok refs/heads/a\n0000");
    }
}
