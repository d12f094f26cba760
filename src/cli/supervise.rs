//! `bottle supervise`: what bottles ask of a person, and the person's answers.
//!
//! Everything that is asked comes from inside a bottle: it is shown inert, and never anything but shown. An answer
//! is a file that the bottle's keeper takes; where it changes the door the keeper is asked, and says what came of it.

use std::io::Read;
use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;
use bottle_contract::proposal;
use bottle_contract::queue::{Id, MAX_TEXT, Proposal, Response, Scope, Status};
use bottle_contract::route::{Form, parse_routes};
use bottle_queue::{Listing, Pending, RespondError, State};
use clap::{Subcommand, ValueHint};
use jiff::{SignedDuration, Timestamp};

use super::completions;
use super::connect::{connect, lost};
use super::error::{CliError, Kind};
use super::exit;
use super::layout::Table;
use super::output::{Output, inert, one_line};
use super::shapes::{Answered, Question};
use crate::host::Host;
use crate::instance::{Store, routes};
use crate::keeper::decisions;
use crate::keeper::protocol::{KeeperEvent, KeeperRequest};

/// Characters of a question's name that are shown; as many name it, when no other begins alike.
const SHORT: usize = 8;

/// The fewest that are taken.
const SHORTEST: usize = 4;

/// Answer what bottles ask, or list it
#[derive(Debug, clap::Args)]
pub(crate) struct Supervise {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List what waits for an answer (the default)
    List,
    /// Show all that is known of a question
    Show {
        /// The question, as `bottle supervise` names it
        #[arg(value_parser = wanted, add = completions::questions())]
        id: String,
    },
    /// Say yes
    Approve {
        /// The question, as `bottle supervise` names it
        #[arg(value_parser = wanted, add = completions::questions())]
        id: String,
        /// Why: it is kept with the question
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Routes that apply instead of the proposed ones, in the same words
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        edit: Option<PathBuf>,
    },
    /// Say no, or take a question away that nobody waits for
    Reject {
        /// The question, as `bottle supervise` names it
        #[arg(value_parser = wanted, add = completions::questions())]
        id: String,
        /// Why: whoever asked is told
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

impl Supervise {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None | Some(What::List) => list(host, output)?,
            Some(What::Show { id }) => show(host, output, &id)?,
            Some(What::Approve { id, reason, edit }) => {
                approve(host, output, &id, reason, edit.as_deref())?;
            }
            Some(What::Reject { id, reason }) => reject(host, output, &id, reason)?,
        }
        Ok(exit::DONE)
    }
}

/// A question's name or how it begins.
fn wanted(text: &str) -> Result<String, String> {
    let good = text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let why =
        || format!("a question's name is at least {SHORTEST} characters of those `bottle supervise` shows");
    good.then(|| text.to_ascii_lowercase()).ok_or_else(why)
}

/// How many questions of this bottle wait.
pub(crate) fn waiting(home: &std::path::Path, slug: &Slug) -> u32 {
    let listing = bottle_queue::Folder::open(home, slug).and_then(|folder| folder.pending(Timestamp::now()));
    let waits = |pending: &&Pending| pending.state == State::Waiting;
    listing
        .map_or(0, |listing| u32::try_from(listing.pending.iter().filter(waits).count()).unwrap_or(u32::MAX))
}

/// All questions, and a word on what cannot be read.
fn all(host: &Host, output: &Output, now: Timestamp) -> Result<Vec<Pending>, CliError> {
    let Listing { pending, damaged } = bottle_queue::list(&host.home, now).map_err(unusable)?;
    for damaged in damaged {
        output.warn(format!("{}: {}; it was passed over", damaged.path.display(), damaged.why));
    }
    // Taken by who asked in a moment.
    Ok(pending.into_iter().filter(|pending| pending.state != State::Answered).collect())
}

fn list(host: &Host, output: &Output) -> Result<(), CliError> {
    let now = Timestamp::now();
    let pending = all(host, output, now)?;
    if output.json {
        return output.print_json(&pending.iter().map(Question::from).collect::<Vec<_>>());
    }
    if pending.is_empty() {
        output.note("nothing waits for an answer");
    }
    let ink = output.ink();
    let row = |pending: &Pending| {
        let Proposal { id, bottle_slug, tool, justification, .. } = &pending.proposal;
        let waits = match pending.state {
            State::Waiting => ink.green(&stands(pending, now)),
            _ => ink.yellow(&stands(pending, now)),
        };
        let id = id.as_str()[..SHORT].to_owned();
        vec![id, bottle_slug.to_string(), tool.name().to_owned(), waits, first_line(justification)]
    };
    let rows: Vec<Vec<String>> = pending.iter().map(row).collect();
    output.print_table(&Table {
        heading: &["ID", "BOTTLE", "ASKS", "WAITS", "WHY"],
        name: 0,
        rows: &rows,
    })?;
    if !rows.is_empty() {
        output.note("`bottle supervise show ID` shows all of one");
    }
    Ok(())
}

/// How it stands, in words.
fn stands(pending: &Pending, now: Timestamp) -> String {
    match pending.state {
        State::Waiting => format!("{} left", span(pending.proposal.expires_at.duration_since(now))),
        State::Answered => "answered".to_owned(),
        State::Expired => "no more: expired".to_owned(),
        State::Stale => "no more: who asked is gone".to_owned(),
    }
}

/// A duration in its largest unit.
fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn first_line(text: &str) -> String {
    one_line(text.lines().next().unwrap_or_default())
}

fn show(host: &Host, output: &Output, id: &str) -> Result<(), CliError> {
    let now = Timestamp::now();
    let pending = find(host, output, id, now)?;
    let opens = opens(host, &pending.proposal);
    if output.json {
        let gains = opens.and_then(Result::ok);
        return output.print_json(&Question { gains, ..Question::from(&pending) });
    }
    let ink = output.ink();
    let Proposal { id, bottle_slug, tool, proposed_file, justification, arrival_timestamp, .. } =
        &pending.proposal;
    let asked = arrival_timestamp.strftime("%Y-%m-%d %H:%M:%SZ");
    let ago = span(now.duration_since(*arrival_timestamp));
    // Another line of what an agent says must not look like one of ours.
    let below = format!("\n{:10}", "");
    let field = |name: &str, text: &str| {
        let lines: Vec<String> = text.split('\n').map(|line| ink.hanging(line, 10)).collect();
        format!("  {name:<7} {}", lines.join(&below))
    };
    let mut lines = vec![
        format!("{} of {}", ink.bold(tool.name()), ink.bold(bottle_slug.as_str())),
        field("id", id.as_str()),
        field("asked", &format!("{asked}, {ago} ago")),
        field("waits", &stands(&pending, now)),
        field("why", inert(justification).trim()),
        String::new(),
    ];
    lines.extend(inert(proposed_file).lines().map(|line| format!("  {line}")));
    match opens {
        None => {}
        Some(Ok(gains)) if gains.is_empty() => {
            lines.push("\n  It would open nothing: all of it is allowed already.".to_owned());
        }
        Some(Ok(gains)) => {
            lines.push("\n  It would open:".to_owned());
            lines.extend(gains.iter().map(|gain| format!("  - {}", ink.hanging(&one_line(gain), 4))));
        }
        Some(Err(why)) => {
            lines.push(format!("\n  It cannot be applied: {}", ink.hanging(&one_line(&why), 2)))
        }
    }
    output.print(&lines.join("\n"))?;
    let short = &id.as_str()[..SHORT];
    if pending.state == State::Waiting {
        let reason = if tool.reports() { " --reason TEXT" } else { "" };
        output.note(format!(
            "`bottle supervise approve {short}{reason}` or `bottle supervise reject {short} --reason TEXT`"
        ));
    }
    Ok(())
}

/// What a proposal of routes would open, laid over those of now, or why it cannot be; none where it changes no
/// routes, or nobody knows them.
fn opens(host: &Host, proposal: &Proposal) -> Option<Result<Vec<String>, String>> {
    if proposal.tool.reports() {
        return None;
    }
    let now = routes::read(&Store::of(host).folder(&proposal.bottle_slug)).ok().flatten()?;
    let table = parse_routes(&now.yaml, Form::Runtime).ok()?;
    let merged = proposal::parse(&proposal.proposed_file).and_then(|asked| proposal::merge(&table, &asked));
    Some(merged.map(|merged| decisions::gains(&table, &merged)).map_err(|error| error.to_string()))
}

fn approve(
    host: &Host,
    output: &Output,
    id: &str,
    reason: Option<String>,
    edit: Option<&Path>,
) -> Result<(), CliError> {
    let pending = find(host, output, id, Timestamp::now())?;
    let Proposal { id, tool, .. } = &pending.proposal;
    if pending.state != State::Waiting {
        let message = format!("nobody waits for this answer: {}", stands(&pending, Timestamp::now()));
        return Err(CliError::new(Kind::State, message).about(id).hint(format!(
            "`bottle supervise reject {} --reason TEXT` takes it away",
            &id.as_str()[..SHORT]
        )));
    }
    if !tool.reports() {
        return change(host, output, &pending, reason, edit);
    }
    if edit.is_some() {
        let message = format!("there is nothing to edit in a question of {}", tool.name());
        return Err(CliError::usage(message).about("--edit").hint("approve it as it is, or reject it"));
    }
    if reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
        let message = format!("an approval of {} needs a reason", tool.name());
        return Err(CliError::usage(message).about("--reason").hint("say why it may pass: `--reason TEXT`"));
    }
    answer(host, output, &pending, Status::Approved, reason)
}

/// Has new routes become live.
fn change(
    host: &Host,
    output: &Output,
    pending: &Pending,
    notes: Option<String>,
    edit: Option<&Path>,
) -> Result<(), CliError> {
    let Proposal { id, bottle_slug, .. } = &pending.proposal;
    let final_file = edit.map(edited).transpose()?;
    let status = if final_file.is_some() { Status::Modified } else { Status::Approved };
    let (decided_at, decided_by) = (Timestamp::now(), person());
    let scope = Scope::Run;
    let response =
        Response { proposal_id: id.clone(), status, notes, final_file, scope, decided_at, decided_by };
    let asked = async {
        let channel = connect(host, bottle_slug).await?;
        let mut stream = channel.open(&KeeperRequest::Answer(Box::new(response))).await.map_err(lost)?;
        match stream.receive::<KeeperEvent>().await.map_err(lost)? {
            KeeperEvent::Answered(brought) => Ok(brought),
            KeeperEvent::Refused(why) => Err(CliError::new(Kind::State, why)
                .about(id)
                .hint("nothing was changed; `bottle supervise` lists those that wait")),
            _ => Err(lost("it answered out of turn")),
        }
    };
    let brought = super::block_on(asked)?;
    said(output, pending, "approved", "was approved, and is live")?;
    for sentence in brought {
        output.note(one_line(&sentence));
    }
    Ok(())
}

/// What a person wrote instead, checked, in our own words.
fn edited(path: &Path) -> Result<String, CliError> {
    let unread = |error: std::io::Error| {
        CliError::usage(format!("cannot read {}: {error}", path.display()))
            .about(path.display())
            .hint("name a file of routes")
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unread)?;
    file.take(MAX_TEXT as u64 + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() > MAX_TEXT {
        return Err(CliError::usage(format!("{} is too long", path.display()))
            .about(path.display())
            .hint("name a file of routes"));
    }
    let routes = proposal::parse(&text).map_err(|error| {
        CliError::new(Kind::Manifest, format!("{}: {error}", path.display()))
            .about(path.display())
            .hint("what an agent may not propose belongs into the bottle's file (`bottle edit`)")
    })?;
    Ok(routes.render())
}

fn reject(host: &Host, output: &Output, id: &str, reason: String) -> Result<(), CliError> {
    let pending = find(host, output, id, Timestamp::now())?;
    let Proposal { id, bottle_slug, .. } = &pending.proposal;
    if pending.state == State::Waiting {
        return answer(host, output, &pending, Status::Rejected, Some(reason));
    }
    let folder = bottle_queue::Folder::open(&host.home, bottle_slug).map_err(unusable)?;
    folder.dismiss(id).map_err(|error| unanswered(error, id))?;
    said(output, &pending, "dismissed", "was taken away; nobody waited for it")
}

fn answer(
    host: &Host,
    output: &Output,
    pending: &Pending,
    status: Status,
    notes: Option<String>,
) -> Result<(), CliError> {
    let Proposal { id, bottle_slug, .. } = &pending.proposal;
    let folder = bottle_queue::Folder::open(&host.home, bottle_slug).map_err(unusable)?;
    let (decided_at, decided_by) = (Timestamp::now(), person());
    let response = Response {
        proposal_id: id.clone(),
        status,
        notes,
        final_file: None,
        scope: Scope::Run,
        decided_at,
        decided_by,
    };
    folder.respond(&response).map_err(|error| unanswered(error, id))?;
    match status {
        Status::Approved | Status::Modified => said(output, pending, "approved", "was approved"),
        Status::Rejected => said(output, pending, "rejected", "was rejected"),
    }
}

fn said(output: &Output, pending: &Pending, status: &'static str, words: &str) -> Result<(), CliError> {
    let Proposal { id, bottle_slug, tool, .. } = &pending.proposal;
    if output.json {
        return output.print_json(&Answered { id: id.to_string(), slug: bottle_slug.to_string(), status });
    }
    output.note(format!("{} of {bottle_slug} {words}", tool.name()));
    Ok(())
}

/// Who answers: the user's name, or number where it has none.
fn person() -> String {
    let user = nix::unistd::getuid();
    let named = nix::unistd::User::from_uid(user).ok().flatten();
    named.map_or_else(|| user.to_string(), |user| user.name)
}

/// The one question whose name begins so.
fn find(host: &Host, output: &Output, begins: &str, now: Timestamp) -> Result<Pending, CliError> {
    let mut found = all(host, output, now)?;
    found.retain(|pending| pending.proposal.id.as_str().starts_with(begins));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(CliError::usage(format!("no question's name begins with {begins}"))
            .about(begins)
            .hint("`bottle supervise` lists those that wait")),
        more => Err(CliError::usage(format!("the names of {more} questions begin with {begins}"))
            .about(begins)
            .hint("`bottle supervise list --json` has their whole names")),
    }
}

fn unusable(error: std::io::Error) -> CliError {
    CliError::new(Kind::State, format!("the queue cannot be used: {error}"))
        .hint("the folder `queue` in $BOTTLE_HOME must be yours, and a folder")
}

fn unanswered(error: RespondError, id: &Id) -> CliError {
    CliError::new(Kind::State, error.to_string())
        .about(id)
        .hint("nothing was changed; `bottle supervise` lists those that wait")
}
