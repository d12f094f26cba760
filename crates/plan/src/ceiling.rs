//! The upper bound for a child bottle: a child may have at most the access and the limits in the plan of its parent.
//!
//! The comparison covers what a bottle can reach. Its content is not compared: prompts, skills, images, services and
//! literal variables may differ.

use std::path::PathBuf;

use bottle_host::budget::{Declared, governing};
use bottle_policy::added_permissions::gains;
use bottle_policy::credential::Scheme;
use bottle_policy::route::{Auth, Route, RouteTable};
use serde::{Deserialize, Serialize};

use super::{Plan, PlannedRepo, Resources, SecretNeed, SecretSource, Value};

/// The access and limits of a parent bottle, which its children must not exceed. The value contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ceiling {
    backend: String,
    routes: RouteTable,
    secrets: Vec<Source>,
    repos: Vec<PlannedRepo>,
    ca_bundle: Option<PathBuf>,
    upstream_proxy: Option<Value>,
    supervise: bool,
    resources: Resources,
    budget: Vec<Declared>,
}

/// A secret: its purpose, and the source of its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Source {
    id: String,
    source: SecretSource,
    purpose: String,
}

impl From<&SecretNeed> for Source {
    fn from(need: &SecretNeed) -> Self {
        let SecretNeed { id, source, purpose, form: _ } = need.clone();
        Self { id, source, purpose }
    }
}

impl Ceiling {
    /// Returns the ceiling that this plan sets for its children.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        Self {
            backend: plan.backend.clone(),
            routes: without_form(&plan.egress.routes),
            secrets: plan.secrets.iter().map(Source::from).collect(),
            repos: plan.repos.clone(),
            ca_bundle: plan.egress.ca_bundle.clone(),
            upstream_proxy: plan.egress.upstream_proxy.clone(),
            supervise: plan.supervise,
            resources: plan.resources.clone(),
            budget: plan.budget.clone(),
        }
    }

    /// Returns the access and limits that `child` has beyond this ceiling, as noun phrases. Empty if `child` stays
    /// within the ceiling.
    #[must_use]
    pub fn exceeded_by(&self, child: &Self) -> Vec<String> {
        let mut more = Vec::new();
        if child.backend != self.backend {
            more.push(format!("the backend {} instead of {}", child.backend, self.backend));
        }
        more.extend(gains(&self.routes, &child.routes).into_iter().map(|gain| format!("the route {gain}")));
        let secrets = child.secrets.iter().filter(|needed| !self.has_secret(needed));
        more.extend(secrets.map(|needed| format!("a secret for {}", needed.purpose)));
        let repos = child.repos.iter().filter(|repo| !self.repos.contains(repo));
        more.extend(repos.map(|repo| format!("the repository {} with this URL, key and rules", repo.name)));
        if child.ca_bundle.is_some() && child.ca_bundle != self.ca_bundle {
            more.push("another `egress.ca_bundle`".to_owned());
        }
        if child.upstream_proxy != self.upstream_proxy {
            more.push("another `egress.upstream_proxy`".to_owned());
        }
        if child.supervise && !self.supervise {
            more.push("`supervise`".to_owned());
        }
        more.extend(self.resources.exceeded_by(&child.resources));
        more.extend(self.unlimited_in(child));
        more
    }

    /// Returns the routes that `child` has although the user revoked them from the parent after the parent's start, as
    /// noun phrases. `live` contains the parent's current routes.
    #[must_use]
    pub fn denied_to(&self, live: &RouteTable, child: &Self) -> Vec<String> {
        let lost = gains(&without_form(live), &child.routes);
        let beyond = gains(&self.routes, &child.routes);
        let lost = lost.into_iter().filter(|gain| !beyond.contains(gain));
        lost.map(|gain| format!("the route {gain}, which it has no more")).collect()
    }

    fn has_secret(&self, needed: &Source) -> bool {
        self.secrets.iter().any(|own| own.id == needed.id && own.source == needed.source)
    }

    /// Returns the budgets of this ceiling for which `child` has no equal or smaller budget.
    fn unlimited_in(&self, child: &Self) -> impl Iterator<Item = String> {
        let keeps = |own: &Declared, limits: &[&Declared]| {
            limits
                .iter()
                .any(|limit| limit.limit.window == own.limit.window && limit.limit.tokens <= own.limit.tokens)
        };
        let lost = move |own: &&Declared| {
            let key = own.limit.key.as_str();
            // A wider scope of the same key may have a larger limit than the scope that governs.
            governing(&self.budget, key).contains(own) && !keeps(own, &governing(&child.budget, key))
        };
        let lost = self.budget.iter().filter(lost);
        lost.map(|own| {
            format!("more than {} tokens of {} ({})", own.limit.tokens, own.limit.key, own.limit.window)
        })
    }
}

/// Removes the form of the agent's login, which depends on the value of the login's secret. The plan of a running
/// bottle contains this form. The plan of a bottle that has not been started does not contain it.
fn without_form(table: &RouteTable) -> RouteTable {
    let plain = |route: &Route| {
        let auth = route.auth.clone().map(|auth| match route.provider {
            true => Auth { scheme: Scheme::Bearer, header: "authorization".to_owned(), ..auth },
            false => auth,
        });
        Route { auth, ..route.clone() }
    };
    // If the new table would be invalid, the old table is returned. The comparison then finds more differences, never
    // fewer.
    table.with_routes(table.routes().iter().map(plain).collect()).unwrap_or_else(|_| table.clone())
}

impl Resources {
    /// Returns the limits that `child` lacks or exceeds.
    fn exceeded_by(&self, child: &Self) -> Vec<String> {
        let Self { cpus, memory, pids, disk, nested } = self;
        let is_more = |own: Option<u64>, other: Option<u64>| {
            own.is_some_and(|own| other.is_none_or(|other| other > own))
        };
        let found = [
            ("cpus", is_more(cpus.map(u64::from), child.cpus.map(u64::from))),
            ("memory", is_more(*memory, child.memory)),
            ("pids", is_more(*pids, child.pids)),
            ("disk", is_more(*disk, child.disk)),
            ("nested", child.nested && !nested),
        ];
        let found = found.into_iter().filter(|(_, is_more)| *is_more);
        found.map(|(key, _)| format!("more `resources.{key}`")).collect()
    }
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::{Limit, Scope, Window};
    use bottle_policy::route::{Form, parse_routes};
    use proptest::prelude::*;

    use super::*;

    const HOSTS: [&str; 4] = ["a.example", "b.example", "*.c.example", "d.example"];

    fn routes(yaml: &str) -> RouteTable {
        parse_routes(yaml, Form::Runtime).expect(yaml)
    }

    fn secret(id: &str, variable: &str) -> Source {
        Source {
            id: id.to_owned(),
            source: SecretSource::Env(variable.to_owned()),
            purpose: format!("the variable {id}"),
        }
    }

    fn limit(key: &str, window: Window, tokens: u64) -> Declared {
        Declared {
            scope: Scope::Agent("a".parse().expect("name")),
            limit: Limit { key: key.to_owned(), window, tokens },
            origin: "a.md:1".to_owned(),
        }
    }

    fn parent() -> Ceiling {
        Ceiling {
            backend: "docker".to_owned(),
            routes: routes(
                "routes:\n- host: a.example\n  matches: [{methods: [GET], paths: [{value: /v1}]}]\n\
                 - host: b.example\n  auth: {scheme: Bearer, slot: b.example}\n- host: '*.c.example'\n",
            ),
            secrets: vec![secret("env.TOKEN", "TOKEN"), secret("b.example", "B")],
            repos: Vec::new(),
            ca_bundle: None,
            upstream_proxy: Some(Value::Literal("http://proxy:1".to_owned())),
            supervise: true,
            resources: Resources {
                cpus: Some(1000),
                memory: Some(1 << 30),
                pids: Some(100),
                disk: None,
                nested: false,
            },
            budget: vec![limit("claude", Window::Day, 1000)],
        }
    }

    #[test]
    fn names_everything_that_is_more() {
        type Change = fn(&mut Ceiling);
        let table: [(Change, &[&str]); 19] = [
            (|_| {}, &[]),
            (|c| c.backend = "linux".to_owned(), &["the backend linux instead of docker"]),
            (|c| c.routes = RouteTable::default(), &[]),
            (
                |c| {
                    c.routes = routes(
                        "routes:\n- host: a.example\n  matches: [{methods: [GET], paths: [{value: /v1/x}]}]\n",
                    )
                },
                &[],
            ),
            (
                |c| c.routes = routes("routes:\n- host: a.example\n  matches: [{methods: [GET]}]\n"),
                &["the route a.example: GET"],
            ),
            (|c| c.routes = routes("routes:\n- host: x.c.example\n"), &[]),
            (|c| c.routes = routes("routes:\n- host: d.example\n"), &["the route d.example"]),
            (
                |c| c.routes = routes("routes:\n- host: b.example\n  auth: {scheme: Bearer, slot: other}\n"),
                &["the route b.example"],
            ),
            (
                |c| c.routes = routes("routes:\n- host: '*.c.example'\n  private: true\n"),
                &["the route *.c.example"],
            ),
            (|c| c.secrets.clear(), &[]),
            (|c| c.secrets.push(secret("env.NEW", "NEW")), &["a secret for the variable env.NEW"]),
            (|c| c.secrets = vec![secret("env.TOKEN", "OTHER")], &["a secret for the variable env.TOKEN"]),
            (|c| c.ca_bundle = Some("/x".into()), &["another `egress.ca_bundle`"]),
            (|c| c.upstream_proxy = None, &["another `egress.upstream_proxy`"]),
            (|c| c.supervise = false, &[]),
            (
                |c| c.resources = Resources { nested: true, ..Resources::default() },
                &[
                    "more `resources.cpus`",
                    "more `resources.memory`",
                    "more `resources.pids`",
                    "more `resources.nested`",
                ],
            ),
            (|c| c.resources.memory = Some(1), &[]),
            (|c| c.budget[0].limit.tokens = 1001, &["more than 1000 tokens of claude (day)"]),
            (|c| c.budget = vec![limit("claude", Window::Day, 10), limit("pi", Window::Day, 9)], &[]),
        ];
        for (number, (change, expected)) in table.into_iter().enumerate() {
            let mut child = parent();
            change(&mut child);
            let found = parent().exceeded_by(&child);
            let begins = found.len() >= expected.len()
                && expected.iter().all(|begin| found.iter().any(|one| one.starts_with(begin)));
            assert!(begins && found.is_empty() == expected.is_empty(), "{number}: {found:?} {expected:?}");
        }
        let unsupervised = Ceiling { supervise: false, ..parent() };
        assert_eq!(unsupervised.exceeded_by(&parent()), ["`supervise`"]);
    }

    /// Creates a ceiling with some of the hosts and secrets.
    fn some(hosts: &[bool], secrets: &[bool], cpus: Option<u32>) -> Ceiling {
        let chosen = HOSTS.iter().zip(hosts).filter(|(_, is_chosen)| **is_chosen);
        let list: String = chosen.map(|(host, _)| format!("- host: '{host}'\n")).collect();
        let table = if list.is_empty() { RouteTable::default() } else { routes(&format!("routes:\n{list}")) };
        let secrets = secrets.iter().enumerate().filter(|(_, is_chosen)| **is_chosen);
        let secrets = secrets.map(|(number, _)| secret(&format!("env.S{number}"), "X")).collect();
        let resources = Resources { cpus, ..Resources::default() };
        Ceiling { routes: table, secrets, resources, budget: Vec::new(), ..parent() }
    }

    fn any_ceiling() -> impl Strategy<Value = (Vec<bool>, Vec<bool>, Option<u32>)> {
        (
            prop::collection::vec(any::<bool>(), 4),
            prop::collection::vec(any::<bool>(), 3),
            prop::option::of(1..9_u32),
        )
    }

    proptest! {
        #[test]
        fn a_child_has_nothing_more_exactly_if_each_part_is_a_part_of_the_parent(
            (hosts, secrets, cpus) in any_ceiling(),
            (child_hosts, child_secrets, child_cpus) in any_ceiling(),
        ) {
            let parent = some(&hosts, &secrets, cpus);
            prop_assert!(parent.exceeded_by(&parent).is_empty());
            let child = some(&child_hosts, &child_secrets, child_cpus);
            let within = |own: &[bool], other: &[bool]| own.iter().zip(other).all(|(own, other)| *own || !*other);
            let fewer_cpus = cpus.is_none_or(|own| child_cpus.is_some_and(|other| other <= own));
            let is_less = within(&hosts, &child_hosts) && within(&secrets, &child_secrets) && fewer_cpus;
            prop_assert_eq!(parent.exceeded_by(&child).is_empty(), is_less);
        }

        #[test]
        fn what_is_written_is_read((hosts, secrets, cpus) in any_ceiling()) {
            let ceiling = some(&hosts, &secrets, cpus);
            let text = serde_json::to_string(&ceiling).expect("written");
            prop_assert_eq!(serde_json::from_str::<Ceiling>(&text).expect("read"), ceiling);
        }
    }
}
