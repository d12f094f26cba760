//! Checks the budgets of launches, and sends budget orders to running bottles.

use bottle_host::budget::{ALL, Declared, Window, governing};
use bottle_host::{Host, Settings, account};
use bottle_keeper::ledger::Standing;
use bottle_keeper::protocol::{BudgetChange, Ended, KeeperEvent, KeeperRequest};
use bottle_plan::{Plan, ineffective_budget};
use bottle_policy::names::Slug;
use bottle_policy::route::HostPattern;
use indicatif::HumanCount;
use jiff::Zoned;

use super::connect::{connect, keeper_lost, unexpected_answer};
use super::failure::Failure;
use super::usage::up_to_date;

/// Refuses a launch if a budget that governs it is spent, or if it is unknown whether the budget is spent. `warn`
/// receives a warning about usage records that were skipped.
pub fn require_unspent(
    host: &Host,
    settings: &Settings,
    plan: &Plan,
    warn: impl FnOnce(String),
) -> Result<(), Failure> {
    let declared: Vec<Declared> = plan.budget.iter().chain(&settings.budget).cloned().collect();
    if declared.is_empty() {
        return Ok(());
    }
    let template = plan.identity.template;
    if let Some((declared, why)) = ineffective_budget(&plan.egress.routes, template, &declared) {
        return Err(limits_nothing(declared, &why));
    }
    let keys = keys(plan);
    let mut governing: Vec<(&str, &Declared)> = keys
        .iter()
        .flat_map(|key| governing(&declared, key).into_iter().map(move |one| (key.as_str(), one)))
        .collect();
    // A budget for one launch is unspent when the launch begins. A budget per minute only delays a request until the
    // minute is over.
    governing.retain(|(_, one)| !matches!(one.limit.window, Window::Run | Window::Minute));
    if governing.is_empty() {
        return Ok(());
    }
    let unknown = |error: Failure| {
        error.reworded(|message| format!("cannot find out whether the budget is spent: {message}"))
    };
    let ledger = up_to_date(host, warn).map_err(unknown)?;
    let now = Zoned::now();
    for (key, declared) in governing {
        let standing = ledger.standing(declared, None, &now).map_err(|error| unknown(error.into()))?;
        if standing.is_spent() {
            return Err(spent(key, declared, standing));
        }
    }
    Ok(())
}

fn limits_nothing(declared: &Declared, why: &str) -> Failure {
    let Declared { scope, limit, origin } = declared;
    let of = if limit.key == ALL { String::new() } else { format!(" for {}", limit.key) };
    Failure::state(format!(
        "cannot start the bottle: the budget of {scope}{of} limits nothing: {why} ({origin})"
    ))
    .about(scope)
    .hint("remove this budget, or the route that it cannot limit")
}

fn spent(key: &str, declared: &Declared, standing: Standing) -> Failure {
    let Declared { scope, limit, origin } = declared;
    let window = match limit.window {
        Window::Day => " of today",
        Window::Month => " of this month",
        Window::Run | Window::Minute | Window::Total => "",
    };
    let [spent, most] = [standing.spent, standing.limit].map(HumanCount);
    Failure::state(format!(
        "cannot start the bottle: the budget{window} of {scope} for {key} is spent: {spent} of {most} tokens ({origin})"
    ))
    .about(scope)
    .hint(format!(
        "`bottle budget add {scope} TOKENS --provider {} --window {}` raises it",
        limit.key, limit.window
    ))
}

/// The budget keys of the providers that a bottle can reach: the name of its template, and the hosts of its other
/// routes.
fn keys(plan: &Plan) -> Vec<String> {
    let template = plan.identity.template.map(|template| template.to_string());
    let routes = plan.egress.routes.routes().iter();
    let mut keys: Vec<String> = routes
        .filter_map(|route| match (&route.host, route.provider) {
            (_, true) => template.clone(),
            (HostPattern::Exact(host), false) => Some(host.clone()),
            // The hosts below a wildcard are known only when a request names one, so their budgets are not checked
            // here.
            (HostPattern::Wildcard(_), false) => None,
        })
        .collect();
    if keys.is_empty() {
        keys.push(ALL.to_owned());
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Sends a budget order to the bottle's keeper, and waits for the keeper's answer. For an order that ends the bottle,
/// [`end`] also waits for the end.
pub async fn send(host: &Host, slug: &Slug, order: BudgetChange) -> Result<(), Failure> {
    let channel = connect(host, slug).await?;
    let mut stream =
        channel.open(&KeeperRequest::Budget { order, by: account::own_name() }).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
        KeeperEvent::Done => Ok(()),
        KeeperEvent::Refused(why) => Err(Failure::state(why).about(slug)),
        _ => Err(unexpected_answer().about(slug)),
    }
}

/// Sends a budget order that ends the bottle, and waits until the bottle has ended. The wait has no deadline, because
/// saving a snapshot can take long.
pub async fn end(host: &Host, slug: &Slug, order: BudgetChange) -> Result<Ended, Failure> {
    let channel = connect(host, slug).await?;
    let mut notices = channel.open(&KeeperRequest::Notices).await.map_err(keeper_lost)?;
    send(host, slug, order).await?;
    loop {
        match notices.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
            KeeperEvent::Ended(ended) => return Ok(ended),
            KeeperEvent::Notice(_) => {}
            _ => return Err(unexpected_answer().about(slug)),
        }
    }
}
