//! Reads the values of a route's keys. Each method converts the value of one key to canonical form and
//! validates it.

use super::spec::{AuthSpec, DlpSpec, HeaderKind, HeaderSpec, MatchSpec, PathKind, PathSpec};
use super::{
    Auth, AuthSource, ConnectTo, Dlp, Form, HeaderMatch, HeaderValueMatch, PathMatch, Pattern, RequestMatch,
    RouteError, validation,
};
use crate::canonical;
use crate::credential::Scheme;
use bottle_text::yaml::Spanned;

/// Validates the values of one route. Errors contain the route's host.
pub(super) struct Checker<'a> {
    pub(super) host: &'a str,
}

impl Checker<'_> {
    pub(super) fn error<T>(
        &self,
        field: &'static str,
        at: &Spanned<T>,
        problem: impl Into<String>,
    ) -> RouteError {
        let host = self.host.escape_debug().to_string();
        RouteError { host, field, problem: problem.into(), at: Some(at.at) }
    }

    /// Adds the host, key and position to the error of a rule.
    fn validate<T>(
        &self,
        field: &'static str,
        at: &Spanned<T>,
        rule: Result<(), String>,
    ) -> Result<(), RouteError> {
        rule.map_err(|problem| self.error(field, at, problem))
    }
}

impl Checker<'_> {
    pub(super) fn ports(&self, written: &Spanned<Vec<u16>>) -> Result<Vec<u16>, RouteError> {
        let mut ports: Vec<u16> = written.value.clone();
        ports.sort_unstable();
        ports.dedup();
        self.validate("ports", written, validation::ports(&ports))?;
        Ok(ports)
    }

    pub(super) fn auth(&self, written: &Spanned<AuthSpec>, form: Form) -> Result<Auth, RouteError> {
        let auth = &written.value;
        let source = match (form, &auth.token_ref, &auth.slot) {
            (Form::Manifest, Some(reference), None) => {
                self.validate("auth.token_ref", reference, validation::reference(&reference.value))?;
                AuthSource::Reference(reference.value.clone())
            }
            (Form::Runtime, None, Some(slot)) => {
                self.validate("auth.slot", slot, validation::slot(&slot.value))?;
                AuthSource::Slot(slot.value.clone())
            }
            (Form::Manifest, _, Some(slot)) => {
                let problem = "only generated routes have slots; write `token_ref: NAME`";
                return Err(self.error("auth.slot", slot, problem));
            }
            (Form::Runtime, Some(reference), _) => {
                let problem = "generated routes have no references; write the `slot`";
                return Err(self.error("auth.token_ref", reference, problem));
            }
            (Form::Manifest, None, None) => {
                let problem = "write where the token comes from: `token_ref: NAME`";
                return Err(self.error("auth.token_ref", written, problem));
            }
            (Form::Runtime, None, None) => {
                return Err(self.error(
                    "auth.slot",
                    written,
                    "write which credential goes here: `slot: NAME`",
                ));
            }
        };
        Ok(Auth { scheme: auth.scheme, header: self.auth_header(written)?, source })
    }

    fn auth_header(&self, written: &Spanned<AuthSpec>) -> Result<String, RouteError> {
        match (written.value.scheme, &written.value.header) {
            (Scheme::Header, None) => {
                let problem = "`scheme: header` needs the header's name: `header: x-api-key`";
                Err(self.error("auth.header", written, problem))
            }
            (_, None) => Ok("authorization".to_owned()),
            (scheme, Some(header)) => {
                let name = header.value.to_ascii_lowercase();
                self.validate("auth.header", header, validation::auth_header(scheme, &name))?;
                Ok(name)
            }
        }
    }

    /// Reads `matches`. An entry without conditions (`{}`) matches every request, so the other entries have no effect.
    /// The result is then the empty list, which is the canonical form of "every request".
    pub(super) fn matches(
        &self,
        written: &Spanned<Vec<Spanned<MatchSpec>>>,
    ) -> Result<Vec<RequestMatch>, RouteError> {
        if written.value.is_empty() {
            let problem = "an empty list would allow no request; name an entry, or leave the key out";
            return Err(self.error("matches", written, problem));
        }
        self.validate("matches", written, validation::length(written.value.len()))?;
        let entries: Vec<RequestMatch> =
            written.value.iter().map(|entry| self.entry(entry)).collect::<Result<_, _>>()?;
        let every_request = entries.contains(&RequestMatch::default());
        Ok(if every_request { Vec::new() } else { entries })
    }

    pub(super) fn except(
        &self,
        written: &Spanned<Vec<Spanned<MatchSpec>>>,
    ) -> Result<Vec<RequestMatch>, RouteError> {
        if written.value.is_empty() {
            let problem = "an empty list excepts no request; name an entry, or leave the key out";
            return Err(self.error("except", written, problem));
        }
        self.validate("except", written, validation::length(written.value.len()))?;
        written.value.iter().map(|entry| self.exception(entry)).collect()
    }

    /// Reads an entry of `except`. An entry without conditions denies every request. An entry cannot have header
    /// conditions, because an agent could avoid the denial by omitting the header.
    fn exception(&self, written: &Spanned<MatchSpec>) -> Result<RequestMatch, RouteError> {
        let MatchSpec { paths, methods, headers } = &written.value;
        if let Some(headers) = headers {
            return Err(self.error("except.headers", headers, validation::NO_EXCEPT_HEADERS));
        }
        Ok(RequestMatch {
            paths: self.list("except.paths", paths.as_ref(), |path| self.path(path))?,
            methods: self.list("except.methods", methods.as_ref(), |method| self.method(method))?,
            headers: Vec::new(),
        })
    }

    fn entry(&self, written: &Spanned<MatchSpec>) -> Result<RequestMatch, RouteError> {
        let MatchSpec { paths, methods, headers } = &written.value;
        Ok(RequestMatch {
            paths: self.list("matches.paths", paths.as_ref(), |path| self.path(path))?,
            methods: self.list("matches.methods", methods.as_ref(), |method| self.method(method))?,
            headers: self.list("matches.headers", headers.as_ref(), |header| self.header(header))?,
        })
    }

    /// Reads a list. The list may be absent, but must not be empty.
    fn list<W, T>(
        &self,
        field: &'static str,
        written: Option<&Spanned<Vec<Spanned<W>>>>,
        read: impl Fn(&Spanned<W>) -> Result<T, RouteError>,
    ) -> Result<Vec<T>, RouteError> {
        let Some(list) = written else { return Ok(Vec::new()) };
        if list.value.is_empty() {
            return Err(self.error(
                field,
                list,
                "an empty list has no meaning; name an entry or leave the key out",
            ));
        }
        self.validate(field, list, validation::length(list.value.len()))?;
        list.value.iter().map(read).collect()
    }

    fn path(&self, written: &Spanned<PathSpec>) -> Result<PathMatch, RouteError> {
        let value = &written.value.value;
        match written.value.kind {
            PathKind::Regex => Ok(PathMatch::Regex(self.pattern("matches.paths.value", value)?)),
            PathKind::Exact => {
                self.validate("matches.paths.value", value, validation::path_value(&value.value))?;
                Ok(PathMatch::Exact(value.value.clone()))
            }
            PathKind::Prefix => {
                // Prefixes match whole segments, so a trailing slash has no effect (as in the Kubernetes
                // Gateway API).
                let bare = value.value.strip_suffix('/').filter(|bare| !bare.is_empty());
                let prefix = bare.unwrap_or(&value.value);
                self.validate("matches.paths.value", value, validation::path_value(prefix))?;
                Ok(PathMatch::Prefix(prefix.to_owned()))
            }
        }
    }

    fn method(&self, written: &Spanned<String>) -> Result<String, RouteError> {
        let name = written.value.to_ascii_uppercase();
        self.validate("matches.methods", written, validation::method(&name))?;
        Ok(name)
    }

    fn header(&self, written: &Spanned<HeaderSpec>) -> Result<HeaderMatch, RouteError> {
        let HeaderSpec { name, kind, value } = &written.value;
        let lower = name.value.to_ascii_lowercase();
        self.validate("matches.headers.name", name, validation::header_name(&lower))?;
        let value = match kind {
            HeaderKind::Regex => HeaderValueMatch::Regex(self.pattern("matches.headers.value", value)?),
            HeaderKind::Exact => {
                self.validate("matches.headers.value", value, validation::header_value(&value.value))?;
                HeaderValueMatch::Exact(value.value.clone())
            }
        };
        Ok(HeaderMatch { name: lower, value })
    }

    fn pattern(&self, field: &'static str, written: &Spanned<String>) -> Result<Pattern, RouteError> {
        self.validate(field, written, validation::text(&written.value))?;
        Pattern::new(&written.value).map_err(|error| self.error(field, written, error.to_string()))
    }

    pub(super) fn connect_to(&self, written: &Spanned<String>) -> Result<ConnectTo, RouteError> {
        let problem = "write `host:PORT`, `name:PORT` or an address with its port";
        match canonical::authority(&written.value) {
            Ok(canonical::Authority { host, port: Some(port) }) => {
                Ok(ConnectTo { host: host.into_owned(), port })
            }
            _ => Err(self.error("connect_to", written, problem)),
        }
    }
}

impl DlpSpec {
    /// Converts the serialized form to the detectors and actions of a route.
    pub(super) fn read(&self) -> Dlp {
        Dlp {
            outbound_detectors: self.outbound_detectors.as_ref().map(|choice| choice.0.clone()),
            inbound_detectors: self.inbound_detectors.as_ref().map(|choice| choice.0.clone()),
            outbound_on_match: self.outbound_on_match,
            inbound_on_match: self.inbound_on_match,
        }
    }
}
