//! Converts a route from its serialized form: fills in defaults, converts values to canonical form, and
//! checks every rule.

use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::values::Checker;
use super::{Dlp, HostPattern, Narrowing, Route, RouteError, RouteSpec, RouteTable, RoutesError, validation};
use bottle_text::yaml::{self, Position, Spanned};

/// The kind of document that contains a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A bottle manifest's `egress.routes`, which the user writes. Allows `auth.token_ref`.
    Manifest,
    /// The routes that a plan generates for the proxy. Allows `auth.slot` and `provider`.
    Runtime,
}

/// A document or message with a list of routes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// The hosts of the repositories behind the git gate.
    #[serde(default)]
    forges: Vec<String>,
    routes: Vec<Spanned<RouteSpec>>,
}

/// Parses a document `routes: [...]`, as [`super::render_routes`] renders it.
///
/// # Errors
/// [`RoutesError`], with the position of the problem.
pub fn parse_routes(text: &str, form: Form) -> Result<RouteTable, RoutesError> {
    let document: Document = yaml::from_str(text)?;
    Ok(document.check(form)?)
}

impl Document {
    fn check(self, form: Form) -> Result<RouteTable, RouteError> {
        let routes = self.routes.iter().map(|spec| spec.value.check(form)).collect::<Result<_, _>>()?;
        let table = RouteTable::new(routes).map_err(|mut error| {
            let names = |spec: &Spanned<RouteSpec>| {
                HostPattern::parse(&spec.value.host.value).map(|host| host.to_string())
            };
            let culprit = self.routes.iter().rev().find(|spec| names(spec).as_ref() == Ok(&error.host));
            error.at = error.at.or_else(|| culprit.map(|spec| spec.at));
            error
        })?;
        Ok(table.with_forges(self.forges))
    }
}

/// Parses a document of generated routes, as [`super::render_routes`] renders it.
impl FromStr for RouteTable {
    type Err = RoutesError;

    fn from_str(text: &str) -> Result<Self, RoutesError> {
        parse_routes(text, Form::Runtime)
    }
}

/// Reads generated routes from a message. Checks the same rules as for a document.
impl<'de> Deserialize<'de> for RouteTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Document::deserialize(deserializer)?.check(Form::Runtime).map_err(D::Error::custom)
    }
}

/// Parses one route without a document around it.
///
/// # Errors
/// [`RoutesError`], with the position of the problem.
pub fn parse_route(text: &str, form: Form) -> Result<Route, RoutesError> {
    let spec: RouteSpec = yaml::from_str(text)?;
    Ok(spec.check(form)?)
}

impl RouteSpec {
    /// Converts the entry to a validated route, by the rules for the kind of document that contains the entry.
    ///
    /// # Errors
    /// [`RouteError`], with the key and the correction.
    pub fn check(&self, form: Form) -> Result<Route, RouteError> {
        let checker = Checker { host: &self.host.value };
        let host =
            HostPattern::parse(&self.host.value).map_err(|why| checker.error("host", &self.host, why))?;
        self.check_form(&checker, form)?;
        let mut route = Route::to(host);
        if let Some(ports) = &self.ports {
            route.ports = checker.ports(ports)?;
        }
        if let Some(auth) = &self.auth {
            route.auth = Some(checker.auth(auth, form)?);
        }
        if let Some(matches) = &self.matches {
            route.matches = checker.matches(matches)?;
        }
        if let Some(except) = &self.except {
            route.except = checker.except(except)?;
        }
        if let Some(to) = &self.connect_to {
            route.connect_to = Some(checker.connect_to(to)?);
        }
        let on = |flag: &Option<Spanned<bool>>, default| flag.as_ref().map_or(default, |flag| flag.value);
        route.pass_credentials = on(&self.pass_credentials, false);
        route.inspect = on(&self.inspect, true);
        route.private = on(&self.private, false);
        route.provider = on(&self.provider, false);
        route.git_fetch = self.git.as_ref().is_some_and(|git| git.value.fetch);
        route.websocket = self.websocket.as_ref().map_or_else(Default::default, |choice| choice.value);
        route.dlp = self.dlp.as_ref().map_or_else(Dlp::default, |dlp| dlp.value.read());
        validation::check_route(&route).map_err(|violation| {
            let at = self.position(violation.field);
            violation.for_host(&route.host, at)
        })?;
        Ok(route)
    }

    /// Returns the host as written, for errors about the whole route.
    #[must_use]
    pub fn host(&self) -> &Spanned<String> {
        &self.host
    }

    fn check_form(&self, checker: &Checker<'_>, form: Form) -> Result<(), RouteError> {
        if let Some(role) = &self.role {
            return Err(checker.error(
                "role",
                role,
                "this key is reserved and has no value yet; leave it out",
            ));
        }
        match (&self.provider, form) {
            (Some(provider), Form::Manifest) => {
                let problem =
                    "only generated routes have this key; leave it out, or use `agent_provider.route`";
                Err(checker.error("provider", provider, problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns the position of the key that violates a rule, or of the host if the key is not set.
    fn position(&self, field: &str) -> Option<Position> {
        let key = field.split('.').next().unwrap_or_default();
        self.set_keys().find(|(name, _)| *name == key).map(|(_, at)| at).or(Some(self.host.at))
    }

    /// Returns the keys except `host` that are set, for rules about who may set them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.set_keys().map(|(key, _)| key)
    }

    fn set_keys(&self) -> impl Iterator<Item = (&'static str, Position)> {
        fn at<T>(value: &Option<Spanned<T>>) -> Option<Position> {
            value.as_ref().map(|value| value.at)
        }
        let Self {
            host: _,
            ports,
            auth,
            pass_credentials,
            matches,
            except,
            git,
            inspect,
            private,
            connect_to,
            websocket,
            dlp,
            provider,
            role,
        } = self;
        [
            ("ports", at(ports)),
            ("auth", at(auth)),
            ("pass_credentials", at(pass_credentials)),
            ("matches", at(matches)),
            ("except", at(except)),
            ("git", at(git)),
            ("inspect", at(inspect)),
            ("private", at(private)),
            ("connect_to", at(connect_to)),
            ("websocket", at(websocket)),
            ("dlp", at(dlp)),
            ("provider", at(provider)),
            ("role", at(role)),
        ]
        .into_iter()
        .filter_map(|(key, at)| Some((key, at?)))
    }
}

impl Narrowing {
    /// Returns the scanning settings, if any are set.
    #[must_use]
    pub fn dlp(&self) -> Option<Dlp> {
        self.dlp.as_ref().map(|dlp| dlp.value.read())
    }

    /// Whether `matches` adds to the requests of the provider route instead of restricting them.
    #[must_use]
    pub fn extends(&self) -> bool {
        self.extend.as_ref().is_some_and(|extend| extend.value)
    }

    /// Applies the change to the provider route. Each entry of `matches` must be included in an entry of the
    /// provider route, so that `matches` can only narrow it. With `extend: true`, the entries of `matches` are
    /// added to those of the provider route instead. `connect_to` and `dlp` are the user's choice. The server
    /// at `connect_to` must still present a valid certificate for the host.
    ///
    /// # Errors
    /// [`RouteError`], with the key and the correction.
    pub fn apply(&self, route: &Route) -> Result<Route, RouteError> {
        let host = route.host.to_string();
        let checker = Checker { host: &host };
        let mut narrowed = route.clone();
        if let Some(matches) = &self.matches {
            let declared = checker.matches(matches)?;
            let within = |entry: &_| route.matches.iter().any(|own| own.includes(entry));
            // Empty `matches` allow every request. They narrow only a provider route that also has empty `matches`.
            let narrower = route.matches.is_empty() || (!declared.is_empty() && declared.iter().all(within));
            match (self.extends(), route.matches.is_empty() || declared.is_empty()) {
                (true, true) => narrowed.matches = Vec::new(),
                (true, false) => {
                    narrowed.matches.extend(declared.into_iter().filter(|entry| !within(entry)));
                }
                (false, _) if narrower => narrowed.matches = declared,
                (false, _) => {
                    let problem = "this allows more than the provider's own route; \
                                   `extend: true` beside `matches` adds it";
                    return Err(checker.error("matches", matches, problem));
                }
            }
        } else if let Some(extend) = self.extend.as_ref().filter(|extend| extend.value) {
            let problem = "`matches` is missing: it lists the requests to add";
            return Err(checker.error("extend", extend, problem));
        }
        if let Some(to) = &self.connect_to {
            narrowed.connect_to = Some(checker.connect_to(to)?);
        }
        if let Some(dlp) = &self.dlp {
            narrowed.dlp = dlp.value.read();
        }
        validation::check_route(&narrowed).map_err(|violation| violation.for_host(&route.host, None))?;
        Ok(narrowed)
    }
}
