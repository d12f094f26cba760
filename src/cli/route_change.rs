//! Changes the routes of a running bottle, as `bottle allow` and `bottle deny` do.
//!
//! ```text
//! flags ─► edit ─► keeper ─► effect ─┬─► live ─► printed
//!            ▲                       └─► weaker protection ─► the user agrees ─► keeper
//! ``` The keeper computes the effect of the edit. The keeper applies the edit in the same way as an approved proposal.

use std::path::PathBuf;

use bottle_channel::Channel;
use bottle_host::Host;
use bottle_host::account;
use bottle_keeper::protocol::{Consent, RouteChange, RouteReport, RouteRequest};
use bottle_lib::connect::connect;
use bottle_lib::proposals::route_change::lookalike_warning;
use bottle_lib::report::{ChangedRoutes, UnsavedManifest};
use bottle_lib::routes::{as_list, change_routes};
use bottle_lib::saved_routes::{Addition, SaveError};
use bottle_manifest::resolve::Weakening;
use bottle_policy::names::Slug;
use bottle_policy::route::HostPattern;
use bottle_policy::route::edit::RouteEdit;

use super::route_addition::show_addition;
use super::route_args::Target;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;
use crate::console::terminal::{TerminalUser, interactive};
use bottle_lib::routes::undo_command;

/// How often the user is asked about one change. The user is asked again if the routes changed before the answer.
const MAX_QUESTIONS: usize = 5;

/// Changes the routes, and prints the effect.
pub(crate) fn change(
    target: Target,
    edit: RouteEdit,
    yes: bool,
    host: &Host,
    output: &Output,
) -> Result<u8, CliError> {
    let change = target.checked(edit)?;
    let Target { slug, save, .. } = target;
    let changed = block_on(async {
        let channel = connect(host, &slug).await?;
        let addition = match (&save, &change) {
            (Some(name), RouteChange::Edit(edit)) => {
                let addition = Addition::of_edit(host, &slug, name.as_ref(), edit);
                let hint = "`--save=NAME` names a bottle file of yours, or creates one; nothing was changed";
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

/// The path of a bottle manifest that was to be changed. If the manifest was not changed, also the reason and the
/// routes.
type Saved = (PathBuf, Option<UnsavedManifest>);

/// Shows the change of the manifest and writes it.
fn saved(host: &Host, addition: &Addition, output: &Output) -> Saved {
    let shown = show_addition(output, addition, "").map_err(SaveError::from);
    let error = shown.and_then(|()| addition.write(host)).err();
    let unsaved = error.map(|error| UnsavedManifest { why: error.to_string(), routes: addition.to_paste() });
    (addition.path.clone(), unsaved)
}

/// Sends the change to the keeper. If the change weakens the protection, asks the user first. Returns `None` if the
/// user disagrees.
async fn apply(
    channel: &Channel,
    slug: &Slug,
    change: RouteChange,
    yes: bool,
    output: &Output,
) -> Result<Option<RouteReport>, CliError> {
    let mut weaken = if yes { Consent::Always } else { Consent::Unasked };
    for _ in 0..MAX_QUESTIONS {
        let report = change_routes(
            channel,
            slug,
            RouteRequest { change: change.clone(), by: account::own_name(), weaken },
        )
        .await?;
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

/// Prints the effect, the routes of the host, and how to undo the change.
fn show(slug: &Slug, report: &RouteReport, saved: Option<Saved>, output: &Output) -> Result<(), CliError> {
    let undo = undo_command(slug, report);
    report.not_followed.iter().for_each(|sentence| output.warn(one_line(sentence)));
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
        routes => output.print(&as_list(routes))?,
    }
    if let Some(undo) = undo {
        output.note(format!("live as revision {} until {slug} ends; `{undo}` undoes it", report.revision));
    }
    match (saved, unsaved) {
        (None, _) => {}
        (Some(path), None) => output.note(format!("saved to {path}")),
        (Some(path), Some(UnsavedManifest { why, routes })) => {
            output.warn(format!("{path} was not changed: {why}"));
            if !routes.is_empty() {
                output.note("the routes of this change, for a file of yours:");
                output.write_error_lines(routes.trim_end());
            }
        }
    }
    Ok(())
}
