//! Changes the routes of a running bottle.

use bottle_channel::Channel;
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest, RouteReport, RouteRequest};
use bottle_policy::names::Slug;

use super::connect::{keeper_lost, unexpected_answer};
use super::failure::Failure;

/// Sends a change of the routes to the bottle's keeper, which applies the change. Returns the effect of the change.
pub async fn change_routes(
    channel: &Channel,
    slug: &Slug,
    request: RouteRequest,
) -> Result<RouteReport, Failure> {
    let request = KeeperRequest::ChangeRoutes(Box::new(request));
    let mut stream = channel.open(&request).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
        KeeperEvent::RoutesChanged(report) => Ok(*report),
        KeeperEvent::Refused(why) => Err(Failure::state(why).about(slug).hint("nothing was changed")),
        _ => Err(unexpected_answer()),
    }
}

/// Returns the command that undoes a change of the routes. `None` if no route changed.
pub fn undo_command(slug: &Slug, report: &RouteReport) -> Option<String> {
    report.changed.then(|| format!("bottle allow {slug} {} --undo", shell_word(&report.host)))
}

/// Quotes a host for a shell if it contains a wildcard.
fn shell_word(host: &str) -> String {
    if host.contains('*') { format!("'{host}'") } else { host.to_owned() }
}

/// Renders routes, each of them in YAML, as the items of `egress.routes`.
pub fn as_list(routes: &[String]) -> String {
    let item = |route: &String| {
        let lines = route.lines().enumerate();
        lines.map(|(at, line)| format!("{}{line}\n", if at == 0 { "- " } else { "  " })).collect::<String>()
    };
    routes.iter().map(item).collect()
}
