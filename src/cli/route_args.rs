//! The arguments of `bottle allow` and `bottle deny`. The screen of the supervise queue accepts the same arguments.

use std::str::FromStr;

use bottle_keeper::protocol::RouteChange;
use bottle_policy::names::{Name, Slug};
use bottle_policy::route::edit::{Action, RouteEdit, Setting};
use bottle_policy::route::{InboundDetector, OnMatch, OutboundDetector};
use clap::Parser as _;
use serde::de::DeserializeOwned;

use super::candidates;
use crate::console::error::CliError;
use crate::screens::supervise::TypedChange;

/// The bottle and the requests of a change.
#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    pub(super) slug: Slug,
    /// The host, `*.HOST` for its subdomains, and a path prefix
    #[arg(value_name = "HOST[/PATH]")]
    requests: String,
    /// Only requests with this method; repeat or separate with commas for several
    #[arg(long = "method", value_name = "METHOD", value_delimiter = ',', conflicts_with = "undo")]
    methods: Vec<String>,
    /// Also make this change in the bottle manifest BOTTLE, or in the one that the bottle was started from
    #[arg(long, value_name = "BOTTLE", num_args = 0..=1, require_equals = true, conflicts_with = "undo")]
    #[arg(add = candidates::bottles())]
    pub(super) save: Option<Option<Name>>,
    /// Undo the last change of this host by `allow` or `deny`
    #[arg(long)]
    undo: bool,
}

/// The value of a flag that selects detectors, in the notation of a route's `dlp`.
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

/// Parses a word in the spelling that manifests use.
fn named<T: DeserializeOwned>(word: &str) -> Result<T, String> {
    let unknown = |error: serde_json::Error| error.to_string();
    serde_json::from_value(serde_json::Value::String(word.to_owned())).map_err(unknown)
}

/// The arguments of `bottle allow`.
#[derive(Debug, clap::Args)]
pub(super) struct AllowArgs {
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
    pub(super) yes: bool,
}

impl AllowArgs {
    /// Returns the target (the bottle and the requests), and the edit of the routes.
    pub(super) fn parts(self) -> (Target, RouteEdit) {
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

impl Target {
    /// Returns the edit of the routes that these arguments describe.
    pub(super) fn edit(&self, action: Action) -> RouteEdit {
        // The user may paste a URL with `https://` from a browser. With any other scheme, the whole text becomes the
        // host, which `checked` then refuses.
        let text = self.requests.strip_prefix("https://").unwrap_or(&self.requests);
        let (host, path) = match text.split_once('/') {
            Some((host, path)) if !text.contains("://") => (host, Some(format!("/{path}"))),
            _ => (text, None),
        };
        RouteEdit { path, methods: self.methods.clone(), ..RouteEdit::new(action, host) }
    }

    /// Returns the change, or an error if the edit is not valid.
    pub(super) fn checked(&self, edit: RouteEdit) -> Result<RouteChange, CliError> {
        let bad = |message: String| CliError::usage(message).about(&self.requests);
        edit.host().map_err(|error| bad(error.to_string()))?;
        match (self.undo, &edit.path) {
            (true, Some(_)) => Err(bad("`--undo` takes a host without a path".to_owned())),
            (true, None) => Ok(RouteChange::Undo { host: edit.host }),
            (false, _) => Ok(RouteChange::Edit(edit)),
        }
    }
}

/// The words that the user types on the screen, as arguments of `allow` or `deny`.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Typed<T: clap::Args> {
    #[command(flatten)]
    words: T,
}

/// Parses the arguments of `bottle allow` or `bottle deny` that the user typed on a screen.
///
/// # Errors
/// Returns an error message if the arguments are not valid, or if a flag has no meaning on the screen.
pub(crate) fn parse_typed(action: Action, text: &str) -> Result<TypedChange, String> {
    fn typed<T: clap::Args>(text: &str) -> Result<T, String> {
        let parsed = Typed::<T>::try_parse_from(text.split_whitespace()).map(|typed| typed.words);
        parsed.map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })
    }
    let (target, edit) = match action {
        Action::Allow => typed::<AllowArgs>(text)?.parts(),
        Action::Deny => {
            let target = typed::<Target>(text)?;
            let edit = target.edit(action);
            (target, edit)
        }
    };
    if target.save.is_some() {
        return Err("`--save` needs the command line".to_owned());
    }
    let change = target.checked(edit).map_err(|error| error.failure.message)?;
    Ok(TypedChange { slug: target.slug, change })
}
