//! The start of a bottle on behalf of the agent in another bottle, the parent.

use std::time::Duration;

use bottle_host::Host;
use bottle_host::file_lock::FileLock;
use bottle_instance::children::{self, Children, Parent};
use bottle_instance::record::Record;
use bottle_instance::{Store, routes};
use bottle_plan::{Ceiling, Plan};
use bottle_policy::names::Name;
use bottle_policy::route::RouteTable;

use crate::failure::Failure;

/// The pause between two attempts to get the lock that another start holds.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum number of differences that an error names.
const MOST_SHOWN: usize = 3;

/// The parent of a bottle that is about to start.
#[derive(Debug)]
pub struct Child {
    parent: Record,
    rules: Children,
    /// The parent's current routes. `None` if the parent's start wrote no routes.
    live: Option<RouteTable>,
    /// A lock that only one start for this parent holds at a time, so that concurrent starts do not exceed the maximum
    /// number of bottles.
    _lock: FileLock,
}

impl Child {
    /// Returns the parent for which this process starts a bottle. `None` if the client of this process is not a bottle.
    /// Waits until other starts for this parent are done.
    ///
    /// # Errors
    /// Returns an error if the parent ended, may not start bottles or this agent, or has reached its maximum number of
    /// bottles.
    pub async fn of(host: &Host, agent: Option<&Name>) -> Result<Option<Self>, Failure> {
        let Some(parent) = parent(host)? else { return Ok(None) };
        let store = Store::of(host);
        let directory = store.directory(&parent.slug);
        let refused =
            |why: String| Err(Failure::state(format!("cannot start a bottle: {why}")).about(&parent.slug));
        let Some(record) = parent.record(&store) else {
            return refused(format!("{} ended, for which it was to start", parent.slug));
        };
        let unreadable = |error| Failure::path("use", &directory, error);
        let Some(rules) = children::read(&directory).map_err(unreadable)? else {
            return refused(format!("the manifests of {} do not allow it", parent.slug));
        };
        if !agent.is_some_and(|agent| rules.rules.agents.contains(agent)) {
            let names: Vec<&str> = rules.rules.agents.iter().map(Name::as_str).collect();
            return refused(format!("{} may start only {}", parent.slug, names.join(", ")));
        }
        let lock = loop {
            if let Some(lock) = children::try_lock(&directory).map_err(unreadable)? {
                break lock;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        };
        let count = parent.count(&store).map_err(|error| Failure::cannot("count its bottles", error))?;
        if count >= rules.rules.bottles {
            let text = format!("{} has {count} already, and may have {}", parent.slug, rules.rules.bottles);
            return refused(text)
                .map_err(|error| error.hint("stop one, and discard it if its files are kept"));
        }
        // The parent's record is read while the lock is held. A change of the record after that is passed on to the new
        // bottle.
        let now = parent.record(&store).unwrap_or(record);
        if now.locked.is_some() {
            return refused(format!("{} is locked", parent.slug));
        }
        if let Some(policy) = now.budget_order {
            return refused(format!("the user stopped the requests of {} to models ({policy})", parent.slug));
        }
        let live = routes::read(&directory).map_err(unreadable)?.map(|routes| routes.table);
        Ok(Some(Self { parent: now, rules, live, _lock: lock }))
    }

    /// The backend of the parent, which the child also uses.
    pub fn backend(&self) -> String {
        self.parent.backend.clone()
    }

    /// Checks that the plan grants only permissions that the parent has.
    ///
    /// # Errors
    /// Returns an error that names the first differences.
    pub fn check(&self, plan: &Plan) -> Result<(), Failure> {
        let wanted = Ceiling::of(plan);
        let mut more = self.rules.ceiling.exceeded_by(&wanted);
        // The user may have narrowed the routes since the parent started.
        if let Some(live) = &self.live {
            more.extend(self.rules.ceiling.denied_to(live, &wanted));
        }
        if more.is_empty() {
            return Ok(());
        }
        let mut shown = more.iter().take(MOST_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        if let Some(rest @ 1..) = more.len().checked_sub(MOST_SHOWN) {
            shown.push_str(&format!("; and {rest} more"));
        }
        let agent = &plan.identity.agent;
        let parent = &self.parent.slug;
        Err(Failure::state(format!("cannot start {agent}: it would have more than {parent}: {shown}"))
            .about(agent)
            .hint("the user can give both the same in their bottle manifests"))
    }
}

fn parent(host: &Host) -> Result<Option<Parent>, Failure> {
    let Some(parsed) = host.parent().and_then(|client| Parent::parse(&client)) else { return Ok(None) };
    let invalid = |why| Failure::usage(why).about(bottle_host::PARENT);
    parsed.map(Some).map_err(invalid)
}

/// Refuses a command that starts bottles without [`Child::check`].
///
/// # Errors
/// Returns an error if the client of this process is a bottle.
pub fn require_no_parent(host: &Host) -> Result<(), Failure> {
    match parent(host)? {
        None => Ok(()),
        Some(parent) => {
            let slug = parent.slug;
            Err(Failure::state(format!("cannot start a bottle for {slug}: only `bottle start` can"))
                .about(slug)
                .hint("start one of the agents that `mcp.agents` names"))
        }
    }
}
