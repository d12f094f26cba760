//! Appends approved routes to a bottle manifest, or applies the user's changes to its routes. The rest of the text
//! stays unchanged.
//!
//! New lines are inserted at one position, and a changed route replaces the lines of the old route. The new text is
//! parsed again. If the new text differs from the old text in anything except these routes, the change is refused, and
//! the user must edit the file by hand.

use bottle_policy::names::Name;
use bottle_policy::route::edit::{EditError, RouteEdit};
use bottle_policy::route::{HostPattern, Route, RouteTable, render_list};
use bottle_text::yaml::{self, Lines, Node};

use super::Position;
use super::bottle::BottleLayer;
use super::error::ManifestError;
use super::frontmatter;
use super::source::Source;

/// Why routes cannot be appended to a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The existing file is not a valid bottle manifest.
    #[error(transparent)]
    Broken(#[from] ManifestError),
    /// The file already has a route for this host, so the user must merge the new route into it.
    #[error("line {} has a route for `{own}` already: merge the route for `{host}` into it", at.line)]
    Listed {
        /// The position of the existing route.
        at: Position,
        /// The host of the existing route.
        own: HostPattern,
        /// The host of the new route.
        host: HostPattern,
    },
    /// The layout of the file does not allow inserted lines.
    #[error("its routes are not written one per line, so none can be added")]
    Shape,
    /// The requested change cannot be made to the file's routes.
    #[error("its routes cannot be changed: {0}")]
    Edit(#[from] EditError),
    /// The file's routes already have the requested effect.
    #[error("its own routes need no change; another bottle file has the route")]
    Unchanged,
}

/// Returns the text of a bottle manifest that contains only these routes.
#[must_use]
pub fn from_routes(routes: &[Route]) -> String {
    format!("---\negress:\n  routes:\n{}---\n", items(routes, 4, "\n"))
}

/// Appends `routes` to the routes in `text`, and returns the new text.
///
/// # Errors
/// Returns [`AppendError`] if the routes cannot be appended. The user must then add the routes by hand.
pub fn append(name: &Name, source: &Source, text: &str, routes: &[Route]) -> Result<String, AppendError> {
    let before = BottleLayer::parse(name.clone(), source.clone(), text)?;
    for own in &before.egress.routes {
        for new in routes {
            if own.value.host.covers_pattern(&new.host) || new.host.covers_pattern(&own.value.host) {
                let (own_host, host) = (own.value.host.clone(), new.host.clone());
                return Err(AppendError::Listed { at: own.at, own: own_host, host });
            }
        }
    }
    let new = insert_lines(text, routes).ok_or(AppendError::Shape)?;
    let old = before.egress.routes.iter().map(|route| route.value.clone());
    let expected: Vec<Route> = old.chain(routes.iter().cloned()).collect();
    checked(name, source, text, new, &expected)
}

/// Changes the routes in `text` with an edit of the user, and returns the new text. Comments inside a changed route
/// are lost.
///
/// # Errors
/// Returns [`AppendError`] if the routes cannot be changed. The user must then change the file by hand.
pub fn apply(name: &Name, source: &Source, text: &str, edit: &RouteEdit) -> Result<String, AppendError> {
    let before = BottleLayer::parse(name.clone(), source.clone(), text)?;
    let old: Vec<Route> = before.egress.routes.iter().map(|route| route.value.clone()).collect();
    let table = RouteTable::new(old.clone()).map_err(EditError::from)?;
    let changed = edit.apply(&table)?;
    if changed == table {
        return Err(AppendError::Unchanged);
    }
    let mut new = text.to_owned();
    // The loop runs from the last route to the first, so that the numbers of earlier routes stay valid.
    for (number, route) in old.iter().enumerate().rev() {
        let now = changed.declared(&route.host);
        if now != Some(route) {
            new = replace_lines(&new, number, now).ok_or(AppendError::Shape)?;
        }
    }
    let kept = old.iter().filter_map(|route| changed.declared(&route.host)).cloned();
    let added: Vec<Route> =
        changed.routes().iter().filter(|route| table.declared(&route.host).is_none()).cloned().collect();
    if !added.is_empty() {
        new = insert_lines(&new, &added).ok_or(AppendError::Shape)?;
    }
    let expected: Vec<Route> = kept.chain(added.iter().cloned()).collect();
    checked(name, source, text, new, &expected)
}

/// Returns the new text, if it contains the expected routes and is otherwise equal to the old text.
fn checked(
    name: &Name,
    source: &Source,
    text: &str,
    new: String,
    expected: &[Route],
) -> Result<String, AppendError> {
    let after = BottleLayer::parse(name.clone(), source.clone(), &new).map_err(|_| AppendError::Shape)?;
    let actual = after.egress.routes.iter().map(|route| &route.value);
    let same = actual.eq(expected) && rest(text) == rest(&new) && body(text) == body(&new);
    if same { Ok(new) } else { Err(AppendError::Shape) }
}

/// Replaces or removes the lines of the route with this number. Returns `None` if the lines are not found.
fn replace_lines(text: &str, number: usize, route: Option<&Route>) -> Option<String> {
    let yaml = frontmatter::split(text).ok()?.yaml?;
    let newline = if yaml.contains("\r\n") { "\r\n" } else { "\n" };
    let lines = Lines::new(yaml);
    let egress = lines.key("egress", 0, 0..lines.count())?;
    let block = lines.below(egress, 0);
    let indent = block.clone().find_map(|line| lines.indent(line))?;
    let key = lines.key("routes", indent, block)?;
    let list = lines.list_below(key, indent);
    let own = list.clone().find_map(|line| lines.indent(line))?;
    let is_start = |line: &usize| lines.indent(*line) == Some(own) && lines.is_item(*line);
    let starts: Vec<usize> = list.clone().filter(is_start).collect();
    let start = *starts.get(number)?;
    let end = lines.end(start..starts.get(number + 1).copied().unwrap_or(list.end));
    let offset = text.len() - text.trim_start_matches('\u{feff}').len();
    let [key_start, start_at, end_at] = [key, start, end].map(|line| offset + lines.start(line));
    let new = route.map(|route| items(std::slice::from_ref(route), own, newline)).unwrap_or_default();
    let (head, tail) = (&text[..start_at], &text[end_at..]);
    if route.is_none() && starts.len() == 1 {
        // The key `routes` needs a value, so an empty list replaces the last route.
        let head =
            format!("{}{}", &head[..key_start], head[key_start..].replacen("routes:", "routes: []", 1));
        return Some(format!("{head}{tail}"));
    }
    Some(format!("{head}{new}{tail}"))
}

/// Inserts the routes after the last route in the text. Returns `None` if no position is found.
fn insert_lines(text: &str, routes: &[Route]) -> Option<String> {
    let yaml = frontmatter::split(text).ok()?.yaml?;
    let (at, more) =
        yaml::insert_items(yaml, "egress", "routes", |indent, newline| items(routes, indent, newline))?;
    let at = text.len() - text.trim_start_matches('\u{feff}').len() + at;
    Some(format!("{}{more}{}", &text[..at], &text[at..]))
}

/// Renders the routes as list items, indented by `indent` columns.
fn items(routes: &[Route], indent: usize, newline: &str) -> String {
    let text = render_list(routes);
    let lines = text.lines().skip_while(|line| !line.trim_start().starts_with('-'));
    let drop = lines.clone().next().map_or(0, |line| line.len() - line.trim_start().len());
    lines.map(|line| format!("{:indent$}{}{newline}", "", line.get(drop..).unwrap_or_default())).collect()
}

/// Returns the content of a file without its routes.
fn rest(text: &str) -> Option<Node> {
    yaml::without_list(frontmatter::split(text).ok()?.yaml?, "egress", "routes")
}

fn body(text: &str) -> Option<&str> {
    frontmatter::split(text).ok().map(|split| split.body)
}

#[cfg(test)]
mod tests {
    use bottle_policy::proposal;
    use proptest::prelude::*;

    use super::super::source::Place;
    use super::*;

    fn source() -> Source {
        Source { place: Place::Home, path: std::path::Path::new("/b/one.md").into() }
    }

    fn append_yaml(text: &str, routes: &str) -> Result<String, AppendError> {
        let routes = proposal::parse(routes).expect(routes).to_routes();
        append(&"one".parse().expect("name"), &source(), text, &routes)
    }

    const NEW: &str = "[{host: new.example, matches: [{methods: [GET]}]}]";

    #[test]
    fn inserts_lines_after_the_last_route_only() {
        for (before, after) in [
            (
                "---\nenv:\n  A: b   # why\n---\nwords\n",
                "---\nenv:\n  A: b   # why\negress:\n  routes:\n    - host: new.example\n      matches:\n      - methods:\n        - GET\n---\nwords\n",
            ),
            (
                "---\n---\n",
                "---\negress:\n  routes:\n    - host: new.example\n      matches:\n      - methods:\n        - GET\n---\n",
            ),
            (
                "---\negress:\n  log: 1\n\n# what else\nsupervise: true\n---\n",
                "---\negress:\n  log: 1\n  routes:\n    - host: new.example\n      matches:\n      - methods:\n        - GET\n\n# what else\nsupervise: true\n---\n",
            ),
            (
                "---\negress:   # all\n    routes: # these\n    - host: a.example  # one\n      matches: &m\n      - methods: [GET]\n    - host: b.example\n      matches: *m\n\n    log: 1\n---\n",
                "---\negress:   # all\n    routes: # these\n    - host: a.example  # one\n      matches: &m\n      - methods: [GET]\n    - host: b.example\n      matches: *m\n    - host: new.example\n      matches:\n      - methods:\n        - GET\n\n    log: 1\n---\n",
            ),
            (
                "\u{feff}---\r\negress:\r\n  routes:\r\n    - host: a.example\r\n---\r\nwords\r\n",
                "\u{feff}---\r\negress:\r\n  routes:\r\n    - host: a.example\r\n    - host: new.example\r\n      matches:\r\n      - methods:\r\n        - GET\r\n---\r\nwords\r\n",
            ),
        ] {
            assert_eq!(append_yaml(before, NEW).expect(before), after);
        }
    }

    #[test]
    fn refuses_files_whose_layout_it_cannot_extend() {
        for (text, words) in [
            ("---\negress: {routes: [{host: a.example}]}\n---\n", "not written one per line"),
            ("---\negress:\n  routes: [{host: a.example}]\n---\n", "not written one per line"),
            ("---\negress:\n---\n", "`egress` has no value"),
            ("---\n{env: {A: b}}\n---\n", "not written one per line"),
            ("---\negress:\n  routes:\n  - host: new.example\n---\n", "line 4 has a route for `new.example`"),
            (
                "---\negress:\n  routes:\n  - host: '*.example.com'\n  - host: new.example\n---\n",
                "has a route for",
            ),
            ("---\nenvy: 1\n---\n", "envy"),
            ("no frontmatter\n", "needs frontmatter"),
        ] {
            let error = append_yaml(text, NEW).expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let wide = "---\negress:\n  routes:\n  - host: a.example.com\n---\n";
        assert!(matches!(append_yaml(wide, "[{host: '*.example.com'}]"), Err(AppendError::Listed { .. })));
    }

    #[test]
    fn an_edit_changes_only_the_lines_of_its_routes() {
        use bottle_policy::route::edit::Action;
        let text = "---\negress:\n  routes:  # all\n  # first\n  - host: a.example  # one\n    matches:\n    - methods: [GET]\n\n  # second\n  - host: b.example\n  log: 1\n---\nwords\n";
        let change = |text: &str, action, host: &str, method: Option<&str>| {
            let edit = RouteEdit {
                methods: method.map(str::to_owned).into_iter().collect(),
                ..RouteEdit::new(action, host)
            };
            apply(&"one".parse().expect("name"), &source(), text, &edit)
        };
        for (action, host, method, old, new) in [
            (
                Action::Allow,
                "a.example",
                Some("POST"),
                "  - host: a.example  # one\n    matches:\n    - methods: [GET]\n",
                "  - host: a.example\n    matches:\n    - methods:\n      - GET\n    - methods:\n      - POST\n",
            ),
            (Action::Deny, "b.example", None, "  - host: b.example\n", ""),
            (
                Action::Deny,
                "b.example",
                Some("PUT"),
                "  - host: b.example\n",
                "  - host: b.example\n    except:\n    - methods:\n      - PUT\n",
            ),
            (
                Action::Allow,
                "c.example",
                None,
                "  - host: b.example\n",
                "  - host: b.example\n  - host: c.example\n",
            ),
        ] {
            let changed = change(text, action, host, method).expect(host);
            assert_eq!(changed, text.replace(old, new), "{action:?} {host}");
        }
        let one = change(text, Action::Deny, "a.example", None).expect("one left");
        let none = change(&one, Action::Deny, "b.example", None).expect("none left");
        assert!(none.contains("  routes: []  # all\n") && none.contains("  # second\n"), "{none}");
        assert_eq!(change(text, Action::Deny, "x.example", None), Err(AppendError::Unchanged));
        let flow = "---\negress:\n  routes: [{host: a.example}]\n---\n";
        assert_eq!(change(flow, Action::Deny, "a.example", None), Err(AppendError::Shape));
    }

    #[test]
    fn a_generated_file_is_a_valid_bottle() {
        let routes = proposal::parse(NEW).expect("routes").to_routes();
        let layer = BottleLayer::parse("one".parse().expect("name"), source(), &from_routes(&routes));
        assert_eq!(layer.expect("a bottle").egress.routes.len(), 1);
    }

    proptest! {
        /// For any file, [`append`] either adds exactly the new routes or fails.
        #[test]
        fn changes_only_the_routes(
            parts in proptest::collection::vec(prop::sample::select(vec![
                "egress:\n", "  routes:\n", "    routes:\n", "  - host: a.example\n", "    - host: b.example\n",
                "      matches:\n", "      - methods: [GET]\n", "  log: 1\n", "env:\n", "  A: |\n", "    text\n",
                "    egress:\n", "# words\n", "\n", "supervise: true\n", "  routes: []\n", "egress: {}\n",
            ]), 0..9),
        ) {
            let text = format!("---\n{}---\nbody\n", parts.concat());
            if let Ok(new) = append_yaml(&text, NEW) {
                let added: Vec<&str> = new.lines().filter(|line| !text.lines().any(|old| old == *line)).collect();
                prop_assert!(!added.is_empty());
                prop_assert!(new.ends_with("---\nbody\n"));
                let layer = |text: &str| BottleLayer::parse("one".parse().expect("name"), source(), text);
                let (old, new) = (layer(&text).expect("read before"), layer(&new).expect("a bottle"));
                prop_assert_eq!(new.egress.routes.len(), old.egress.routes.len() + 1);
                prop_assert_eq!(new.egress.log.is_some(), old.egress.log.is_some());
                prop_assert_eq!(new.env.len(), old.env.len());
            }
        }
    }
}
