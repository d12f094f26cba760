//! `bottle allow` and `bottle deny`: change the routes of a running bottle.
//!
//! ```text
//! flags ─► edit ─► keeper ─► effect ─┬─► live ─► printed
//!            ▲                       └─► weaker protection ─► the user agrees ─► keeper
//! ```
//! The keeper computes the effect and applies it in the same way as an approval.

use std::str::FromStr;

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_contract::route::edit::{Action, RouteEdit, Setting};
use bottle_contract::route::{InboundDetector, OnMatch, OutboundDetector};
use serde::de::DeserializeOwned;

use super::completions;
use super::connect::{connect, keeper_lost, unexpected_answer};
use super::error::{CliError, require_answer};
use super::exit;
use super::json_schema::ChangedRoutes;
use super::output::{Output, one_line};
use super::supervise::{lookalike_warning, user};
use super::terminal::{TerminalUser, interactive};
use crate::host::Host;
use crate::keeper::protocol::{Consent, KeeperEvent, KeeperRequest, RouteChange, RouteReport, RouteRequest};

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
/// Without a path or method, removes the route to the host. Otherwise the route stays, and denies these requests.
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
        let Self { target, git_fetch, outbound_detectors, inbound_detectors, outbound_on_match, yes } = self;
        let edit = RouteEdit {
            git_fetch,
            outbound_detectors: outbound_detectors.map(|detectors| detectors.0),
            inbound_detectors: inbound_detectors.map(|detectors| detectors.0),
            outbound_on_match,
            ..target.edit(Action::Allow)
        };
        target.change(edit, yes, host, output)
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
        let Self { slug, requests, undo, .. } = self;
        let bad = |message: String| CliError::usage(message).about(&requests);
        edit.host().map_err(|error| bad(error.to_string()))?;
        if undo && edit.path.is_some() {
            return Err(bad("`--undo` takes a host without a path".to_owned()));
        }
        let change = if undo { RouteChange::Undo { host: edit.host } } else { RouteChange::Edit(edit) };
        let changed = super::block_on(async {
            let channel = connect(host, &slug).await?;
            apply(&channel, &slug, change, yes, output).await
        })?;
        match changed {
            Some(report) => show(&slug, &report, output)?,
            None => output.note("nothing was changed"),
        }
        Ok(exit::DONE)
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
fn show(slug: &Slug, report: &RouteReport, output: &Output) -> Result<(), CliError> {
    let undo = report.changed.then(|| format!("bottle allow {slug} {} --undo", shell_word(&report.host)));
    if output.json {
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
        });
    }
    if report.host.split('.').any(|label| label.starts_with("xn--")) {
        output.warn(lookalike_warning(&report.host));
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
    Ok(())
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
