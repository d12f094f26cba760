//! Finds budgets that limit nothing. The proxy cannot count the tokens of the provider that such a budget names, or the
//! bottle cannot reach this provider.

use bottle_host::budget::{ALL, Declared, Scope, governing};
use bottle_manifest::agent_provider::Template;
use bottle_policy::route::{HostPattern, Route, RouteTable};
use bottle_protocol::endpoints::{serves_models, unmetered_provider};

/// Returns the first budget that governs this launch and limits nothing, and the reason as a clause. In `declared`, the
/// narrowest scope is first.
#[must_use]
pub fn ineffective_budget<'d>(
    routes: &RouteTable,
    template: Option<Template>,
    declared: &'d [Declared],
) -> Option<(&'d Declared, String)> {
    routes.routes().iter().find_map(|route| uncounted(route, template, declared)).or_else(|| {
        // The budgets of a bottle manifest and of `$BOTTLE_HOME` apply to several agents, so one agent need not reach
        // their providers.
        let of_this = declared.iter().filter(|one| matches!(one.scope, Scope::Run(_) | Scope::Agent(_)));
        let mut unreached =
            of_this.filter(|one| one.limit.key != ALL && !reaches(routes, template, &one.limit.key));
        unreached.next().map(|one| (one, format!("no route leads to {}", one.limit.key)))
    })
}

/// Returns the budget that governs a route whose tokens the proxy cannot count.
fn uncounted<'d>(
    route: &Route,
    template: Option<Template>,
    declared: &'d [Declared],
) -> Option<(&'d Declared, String)> {
    let HostPattern::Exact(host) = &route.host else { return None };
    let key = match (route.provider, template) {
        (true, Some(template)) => template.to_string(),
        _ => host.clone(),
    };
    let governs = *governing(declared, &key).first()?;
    if let Some(provider) = unmetered_provider(host) {
        return Some((governs, format!("the proxy cannot count the tokens of {provider} ({host})")));
    }
    let is_model = route.provider || serves_models(host) || governs.limit.key == *host;
    let why =
        || format!("the proxy does not read the requests to {host}, because its route has `inspect: false`");
    (!route.inspect && is_model).then(|| (governs, why()))
}

/// Whether a route reaches the provider that `key` names.
fn reaches(routes: &RouteTable, template: Option<Template>, key: &str) -> bool {
    let is_template = template.is_some_and(|template| template.to_string() == key);
    routes.routes().iter().any(|route| match route.provider {
        true => is_template,
        false => route.host.covers(key),
    })
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::{Limit, Window};

    use super::*;

    fn budget(scope: Scope, key: &str) -> Declared {
        let limit = Limit { key: key.to_owned(), window: Window::Total, tokens: 5 };
        Declared { scope, limit, origin: "here".to_owned() }
    }

    fn found(routes: &str, template: Option<Template>, declared: &[Declared]) -> Option<String> {
        let routes: RouteTable = format!("routes:\n{routes}").parse().expect("routes");
        ineffective_budget(&routes, template, declared).map(|(one, why)| format!("{}: {why}", one.limit.key))
    }

    const GEMINI: &str = "- host: generativelanguage.googleapis.com\n  provider: true\n";

    #[test]
    fn finds_what_cannot_be_counted() {
        let pi = Some(Template::Pi);
        let why = "the proxy cannot count the tokens of Gemini (generativelanguage.googleapis.com)";
        assert_eq!(found(GEMINI, pi, &[budget(Scope::Host, "pi")]), Some(format!("pi: {why}")));
        assert_eq!(found(GEMINI, pi, &[budget(Scope::Ceiling, ALL)]), Some(format!("{ALL}: {why}")));
        assert_eq!(found(GEMINI, pi, &[budget(Scope::Host, "claude")]), None);
        let bedrock = "- host: bedrock-runtime.us-east-1.amazonaws.com\n";
        assert!(found(bedrock, None, &[budget(Scope::Host, ALL)]).is_some());
        let pinned = "- host: llm.example\n  inspect: false\n";
        assert!(found(pinned, None, &[budget(Scope::Host, "llm.example")]).is_some());
        assert_eq!(
            found(pinned, None, &[budget(Scope::Host, ALL)]),
            None,
            "it is no model, as far as is known"
        );
    }

    #[test]
    fn finds_what_no_route_leads_to() {
        let routes = "- host: api.openai.com\n- host: '*.llm.example'\n";
        let agent = || Scope::Agent("a".parse().expect("a name"));
        assert_eq!(
            found(routes, None, &[budget(agent(), "api.openai.com"), budget(agent(), "a.llm.example")]),
            None
        );
        for key in ["claude", "llm.example", "openai.com"] {
            let expected = Some(format!("{key}: no route leads to {key}"));
            assert_eq!(found(routes, Some(Template::Pi), &[budget(agent(), key)]), expected);
            assert_eq!(
                found(routes, Some(Template::Pi), &[budget(Scope::Host, key)]),
                None,
                "for other agents"
            );
        }
    }
}
