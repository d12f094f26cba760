//! `bottle allow` and `bottle deny`: change the routes of a running bottle.
//!
//! ```text
//! flags ─► edit ─► keeper ─► effect ─┬─► live ─► printed
//!            ▲                       └─► weaker protection ─► the user agrees ─► keeper
//! ```
//! The keeper computes the effect and applies it in the same way as an approval.

use std::path::PathBuf;
use std::str::FromStr;

use bottle_channel::Channel;
use bottle_contract::names::{Name, Slug};
use bottle_contract::route::edit::{Action, RouteEdit, Setting};
use bottle_contract::route::{HostPattern, InboundDetector, OnMatch, OutboundDetector};
use clap::Parser as _;
use serde::de::DeserializeOwned;

use super::completions;
use super::connect::{connect, keeper_lost, unexpected_answer};
use super::error::{CliError, require_answer};
use super::exit;
use super::json_schema::ChangedRoutes;
use super::output::{Output, one_line};
use super::supervise::{Addition, SaveError, Unsaved, lookalike_warning, show_addition, user};
use super::terminal::{TerminalUser, interactive};
use crate::host::Host;
use crate::keeper::protocol::{Consent, KeeperEvent, KeeperRequest, RouteChange, RouteReport, RouteRequest};
use crate::resolve::Weakening;

/// How often the user is asked about one change, if the routes change while the user thinks.
const MAX_QUESTIONS: usize = 5;

/// Allow a running bottle more requests, or change how they are scanned
///
/// The change is live when the command ends, and applies until the bottle ends. A host that has no route gets one
/// with default scanning and without a credential; an existing route is widened. The next request is decided by the
/// new routes.
#[derive(Debug, clap::Args)]
pub(crate) struct Allow {
    #[command(flatten)]
    target: Target,
    /// Allow git clone and fetch over https
    #[arg(long, conflicts_with = "undo")]
    git_fetch: bool,
    /// Set `dlp.outbound_detectors` of the route: `default`, `false`, or names such as `known_secrets,entropy`
    #[arg(long, value_name = "DETECTORS", conflicts_with = "undo")]
    outbound_detectors: Option<Detectors<OutboundDetector>>,
    /// Set `dlp.inbound_detectors` of the route: `default`, `false`, or names
    #[arg(long, value_name = "DETECTORS", conflicts_with = "undo")]
    inbound_detectors: Option<Detectors<InboundDetector>>,
    /// Set `dlp.outbound_on_match` of the route: `default`, `supervise`, `redact` or `block`
    #[arg(long, value_name = "ACTION", conflicts_with = "undo", value_parser = parse_on_match)]
    outbound_on_match: Option<Setting<OnMatch>>,
    /// Do not ask before a change that weakens the protection
    #[arg(short, long)]
    yes: bool,
}

/// Deny a running bottle requests that its routes allow
///
/// Without a path or method, removes the route to the host. Otherwise narrows the route, which then denies these
/// requests; a route that allows nothing any more is removed.
/// The change is live when the command ends, and applies until the bottle ends. Requests in flight and open
/// WebSockets are not cut.
#[derive(Debug, clap::Args)]
pub(crate) struct Deny {
    #[command(flatten)]
    target: Target,
}

/// The bottle and the requests of a change.
#[derive(Debug, clap::Args)]
struct Target {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::running())]
    slug: Slug,
    /// The host, `*.HOST` for its subdomains, and a path prefix
    #[arg(value_name = "HOST[/PATH]")]
    requests: String,
    /// Only requests with this method; repeat or separate with commas for several
    #[arg(long = "method", value_name = "METHOD", value_delimiter = ',', conflicts_with = "undo")]
    methods: Vec<String>,
    /// Also make this change in the bottle manifest BOTTLE, or in the one that the bottle was started from
    #[arg(long, value_name = "BOTTLE", num_args = 0..=1, require_equals = true, conflicts_with = "undo")]
    #[arg(add = completions::bottles())]
    save: Option<Option<Name>>,
    /// Undo the last change of this host by `allow` or `deny`
    #[arg(long)]
    undo: bool,
}

/// A value of a flag for detectors, in the words of a route's `dlp`.
#[derive(Debug, Clone)]
struct Detectors<T>(Setting<Vec<T>>);

impl<T: DeserializeOwned> FromStr for Detectors<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => Ok(Self(Setting::Default)),
            "false" => Ok(Self(Setting::To(Vec::new()))),
            names => names.split(',').map(named).collect::<Result<_, _>>().map(Setting::To).map(Self),
        }
    }
}

fn parse_on_match(text: &str) -> Result<Setting<OnMatch>, String> {
    if text == "default" { Ok(Setting::Default) } else { named(text).map(Setting::To) }
}

/// Parses a word as a manifest has it.
fn named<T: DeserializeOwned>(word: &str) -> Result<T, String> {
    let unknown = |error: serde_json::Error| error.to_string();
    serde_json::from_value(serde_json::Value::String(word.to_owned())).map_err(unknown)
}

impl Allow {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let yes = self.yes;
        let (target, edit) = self.parts();
        target.change(edit, yes, host, output)
    }

    fn parts(self) -> (Target, RouteEdit) {
        let Self { target, git_fetch, outbound_detectors, inbound_detectors, outbound_on_match, .. } = self;
        let edit = RouteEdit {
            git_fetch,
            outbound_detectors: outbound_detectors.map(|detectors| detectors.0),
            inbound_detectors: inbound_detectors.map(|detectors| detectors.0),
            outbound_on_match,
            ..target.edit(Action::Allow)
        };
        (target, edit)
    }
}

impl Deny {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let edit = self.target.edit(Action::Deny);
        self.target.change(edit, false, host, output)
    }
}

impl Target {
    fn edit(&self, action: Action) -> RouteEdit {
        // A URL as the browser shows it. Any other scheme is refused with the host.
        let text = self.requests.strip_prefix("https://").unwrap_or(&self.requests);
        let (host, path) = match text.split_once('/') {
            Some((host, path)) if !text.contains("://") => (host, Some(format!("/{path}"))),
            _ => (text, None),
        };
        RouteEdit { path, methods: self.methods.clone(), ..RouteEdit::new(action, host) }
    }

    fn change(self, edit: RouteEdit, yes: bool, host: &Host, output: &Output) -> Result<u8, CliError> {
        let change = self.checked(edit)?;
        let Self { slug, save, .. } = self;
        let changed = super::block_on(async {
            let channel = connect(host, &slug).await?;
            let addition = match (&save, &change) {
                (Some(name), RouteChange::Edit(edit)) => {
                    let addition = Addition::of_edit(host, &slug, name.as_ref(), edit);
                    let hint =
                        "`--save=NAME` names a bottle file of yours, or creates one; nothing was changed";
                    Some(addition.map_err(|error| error.about("--save").hint(hint))?)
                }
                _ => None,
            };
            let report = apply(&channel, &slug, change, yes, output).await?;
            Ok(report.map(|report| (report, addition)))
        })?;
        let Some((report, addition)) = changed else {
            output.note("nothing was changed");
            return Ok(exit::DONE);
        };
        let saved = addition.map(|addition| saved(host, &addition, output));
        show(&slug, &report, saved, output)?;
        Ok(exit::DONE)
    }

    /// Returns the change, if the edit is valid.
    fn checked(&self, edit: RouteEdit) -> Result<RouteChange, CliError> {
        let bad = |message: String| CliError::usage(message).about(&self.requests);
        edit.host().map_err(|error| bad(error.to_string()))?;
        match (self.undo, &edit.path) {
            (true, Some(_)) => Err(bad("`--undo` takes a host without a path".to_owned())),
            (true, None) => Ok(RouteChange::Undo { host: edit.host }),
            (false, _) => Ok(RouteChange::Edit(edit)),
        }
    }
}

/// A bottle manifest that was to be changed, and why it was not.
type Saved = (PathBuf, Option<Unsaved>);

/// Shows the change of the manifest and writes it.
fn saved(host: &Host, addition: &Addition, output: &Output) -> Saved {
    let shown = show_addition(output, addition, "").map_err(SaveError::from);
    let error = shown.and_then(|()| addition.write(host)).err();
    let unsaved = error.map(|error| Unsaved { why: error.to_string(), routes: addition.to_paste() });
    (addition.path.clone(), unsaved)
}

/// A change that the user typed on the screen of `bottle supervise`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TypedChange {
    pub(super) slug: Slug,
    pub(super) change: RouteChange,
}

/// The words that the user types on the screen, as arguments of `allow` or `deny`.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Typed<T: clap::Args> {
    #[command(flatten)]
    words: T,
}

impl TypedChange {
    /// Parses the arguments of `bottle allow` or `bottle deny`.
    ///
    /// # Errors
    /// Returns an error in words if the arguments are not valid, or if a flag has no meaning on the screen.
    pub(super) fn parse(action: Action, text: &str) -> Result<Self, String> {
        fn typed<T: clap::Args>(text: &str) -> Result<T, String> {
            let parsed = Typed::<T>::try_parse_from(text.split_whitespace()).map(|typed| typed.words);
            parsed.map_err(|error| {
                let text = error.to_string();
                text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
            })
        }
        let (target, edit) = match action {
            Action::Allow => typed::<Allow>(text)?.parts(),
            Action::Deny => {
                let target = typed::<Deny>(text)?.target;
                let edit = target.edit(action);
                (target, edit)
            }
        };
        if target.save.is_some() {
            return Err("`--save` needs the command line".to_owned());
        }
        let change = target.checked(edit).map_err(|error| error.message)?;
        Ok(Self { slug: target.slug, change })
    }

    /// Sends the change to the bottle's keeper.
    ///
    /// # Errors
    /// Returns an error if nothing was changed.
    pub(super) fn send(&self, host: &Host, weaken: Consent) -> Result<RouteReport, CliError> {
        let request_of = RouteRequest { change: self.change.clone(), by: user(), weaken };
        super::block_on(async { request(&connect(host, &self.slug).await?, &self.slug, request_of).await })
    }
}

/// Sends the change, and asks the user if it weakens the protection. Returns `None` if the user disagrees.
async fn apply(
    channel: &Channel,
    slug: &Slug,
    change: RouteChange,
    yes: bool,
    output: &Output,
) -> Result<Option<RouteReport>, CliError> {
    let mut weaken = if yes { Consent::Always } else { Consent::Unasked };
    for _ in 0..MAX_QUESTIONS {
        let report =
            request(channel, slug, RouteRequest { change: change.clone(), by: user(), weaken }).await?;
        if report.live {
            return Ok(Some(report));
        }
        let weaker = report.weakenings.iter().map(|words| one_line(words));
        if output.json || !interactive() {
            let words: Vec<String> = weaker.collect();
            return Err(CliError::usage(format!("this weakens the protection: {}", words.join("; ")))
                .about("--yes")
                .hint("`--yes` agrees; nothing was changed"));
        }
        let styles = output.err_styles();
        for words in weaker {
            output.write_error_lines(&styles.red(&format!("weaker: {words}")));
        }
        let question = format!("Change the routes of {slug}?");
        let asked = tokio::task::spawn_blocking(move || TerminalUser::find()?.confirm(&question)).await;
        if !require_answer(asked.unwrap_or_else(|error| Err(error.into())), "nothing was changed")? {
            return Ok(None);
        }
        weaken = Consent::At(report.revision);
    }
    Err(CliError::state("the routes keep changing").about(slug).hint("nothing was changed; try again"))
}

async fn request(channel: &Channel, slug: &Slug, request: RouteRequest) -> Result<RouteReport, CliError> {
    let request = KeeperRequest::ChangeRoutes(Box::new(request));
    let mut stream = channel.open(&request).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
        KeeperEvent::RoutesChanged(report) => Ok(*report),
        KeeperEvent::Refused(why) => Err(CliError::state(why).about(slug).hint("nothing was changed")),
        _ => Err(unexpected_answer()),
    }
}

/// Prints the effect, the routes of the host, and how to undo the change.
fn show(slug: &Slug, report: &RouteReport, saved: Option<Saved>, output: &Output) -> Result<(), CliError> {
    let undo = undo_command(slug, report);
    report.untold.iter().for_each(|untold| output.warn(one_line(untold)));
    let (saved, unsaved) = match saved {
        Some((path, unsaved)) => (Some(path.display().to_string()), unsaved),
        None => (None, None),
    };
    if output.json {
        let saved = saved.filter(|_| unsaved.is_none());
        let RouteReport { host, revision, changed, routes, gains, losses, weakenings, .. } = report.clone();
        let slug = slug.to_string();
        return output.print_json(&ChangedRoutes {
            slug,
            host,
            revision,
            changed,
            routes,
            gains,
            losses,
            weakenings,
            undo,
            saved,
            unsaved,
        });
    }
    if report.host.split('.').any(|label| label.starts_with("xn--")) {
        output.warn(lookalike_warning(&report.host));
    }
    if !report.gains.is_empty() && HostPattern::parse(&report.host).is_ok_and(|host| host.spans_owners()) {
        output.warn(format!("{} {}", report.host, Weakening::ManyOwners.sentence()));
    }
    if report.changed {
        report.gains.iter().for_each(|words| output.note(format!("+ {}", one_line(words))));
        report.losses.iter().for_each(|words| output.note(format!("- {}", one_line(words))));
    } else {
        output.note(format!("no change: the routes of {slug} decide so already"));
    }
    match &report.routes[..] {
        [] => output.note(format!("{slug} has no route to {}", report.host)),
        routes => output.print(&listed(routes))?,
    }
    if let Some(undo) = undo {
        output.note(format!("live as revision {} until {slug} ends; `{undo}` undoes it", report.revision));
    }
    match (saved, unsaved) {
        (None, _) => {}
        (Some(path), None) => output.note(format!("saved to {path}")),
        (Some(path), Some(Unsaved { why, routes })) => {
            output.warn(format!("{path} was not changed: {why}"));
            if !routes.is_empty() {
                output.note("the routes of this change, for a file of yours:");
                output.write_error_lines(routes.trim_end());
            }
        }
    }
    Ok(())
}

/// The command that undoes a change; none if nothing changed.
pub(super) fn undo_command(slug: &Slug, report: &RouteReport) -> Option<String> {
    report.changed.then(|| format!("bottle allow {slug} {} --undo", shell_word(&report.host)))
}

/// Renders routes as the items of `egress.routes`.
fn listed(routes: &[String]) -> String {
    let item = |route: &String| {
        let lines = route.lines().enumerate();
        lines.map(|(at, line)| format!("{}{line}\n", if at == 0 { "- " } else { "  " })).collect::<String>()
    };
    routes.iter().map(item).collect()
}

/// Quotes a wildcard for a shell.
fn shell_word(host: &str) -> String {
    if host.contains('*') { format!("'{host}'") } else { host.to_owned() }
}
