//! Stores the credentials, each bound to one destination.
//!
//! The store is filled once, at launch. The store returns a value only as a complete header, and only to a route whose
//! slot, host, scheme and header equal the binding.

use std::collections::HashMap;

use bottle_policy::credential::{BadCredential, Binding, Scheme, binding, header_value};
use bottle_policy::route::Route;
use bottle_policy::secret::Secret;
use bottle_protocol::session::bundle::Credential;
use bottle_scan::KnownSecret;
use http::{HeaderName, HeaderValue};

/// The bindings, each with its credential, if the credential has a value.
pub(crate) struct CredentialStore(HashMap<Binding, Option<Loaded>>);

struct Loaded {
    secret: Secret,
    name: HeaderName,
    value: HeaderValue,
}

impl CredentialStore {
    /// Stores `credentials` and takes ownership of their values.
    ///
    /// # Errors
    /// [`BadCredential`] if a value cannot be sent in its header.
    pub(crate) fn new(credentials: Vec<Credential>) -> Result<Self, BadCredential> {
        let mut slots = HashMap::new();
        for Credential { binding, value } in credentials {
            let loaded = value.map(|value| Loaded::new(&binding, value.0)).transpose()?;
            slots.insert(binding, loaded);
        }
        Ok(Self(slots))
    }

    /// All bindings, including those without a value.
    pub(crate) fn bindings(&self) -> Vec<Binding> {
        self.0.keys().cloned().collect()
    }

    /// Whether any binding of `slot` has a value.
    pub(crate) fn holds(&self, slot: &str) -> bool {
        self.0.iter().any(|(binding, loaded)| binding.slot == slot && loaded.is_some())
    }

    /// The passwords in values of the scheme `basic`. The redactor treats them as separate secrets.
    pub(crate) fn passwords(&self) -> Vec<Secret> {
        let basic = self.0.iter().filter(|(binding, _)| binding.scheme == Scheme::Basic);
        let values = basic.filter_map(|(_, loaded)| loaded.as_ref()?.secret.expose().trim().split_once(':'));
        values.map(|(_, password)| Secret::new(password.to_owned())).collect()
    }

    /// All values with their bindings, for the scanners. In the scheme `basic`, only the password is secret.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&Binding, KnownSecret<'_>)> {
        self.0.iter().filter_map(|(binding, loaded)| {
            let secret = &loaded.as_ref()?.secret;
            let known = match binding.scheme {
                Scheme::Basic => KnownSecret::login(secret),
                Scheme::Bearer | Scheme::Token | Scheme::Header => KnownSecret::new(secret),
            };
            Some((binding, known))
        })
    }

    /// All values, for the redactor.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Secret> {
        self.0.values().flatten().map(|loaded| &loaded.secret)
    }

    /// The header that the proxy adds on `route`, or `None` if the route's binding has no value.
    pub(crate) fn header_for(&self, route: &Route) -> Option<(HeaderName, HeaderValue)> {
        let loaded = self.0.get(&binding(route)?)?.as_ref()?;
        Some((loaded.name.clone(), loaded.value.clone()))
    }
}

impl Loaded {
    fn new(binding: &Binding, secret: Secret) -> Result<Self, BadCredential> {
        let bad = |why| BadCredential { slot: binding.slot.clone(), why };
        let written = header_value(binding, &secret)?;
        let name = HeaderName::try_from(&binding.header).map_err(|_| bad("has no valid header name"))?;
        let mut value = HeaderValue::try_from(written.expose())
            .map_err(|_| bad("contains a character that no header can carry"))?;
        // A sensitive value is excluded from Debug output and from HTTP/2's compression table.
        value.set_sensitive(true);
        Ok(Self { secret, name, value })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bottle_policy::credential::Scheme;
    use bottle_policy::route::{Form, parse_route};
    use bottle_scan::{KnownSecrets, Scanner};

    use super::*;

    fn credential_store() -> CredentialStore {
        let binding = Binding {
            slot: "key".into(),
            host: "api.example.com".into(),
            scheme: Scheme::Header,
            header: "x-api-key".into(),
        };
        CredentialStore::new(vec![Credential { binding, value: Some("real".into()) }])
            .expect("credential_store")
    }

    #[test]
    fn searches_only_for_the_password_of_a_login() {
        let binding = Binding {
            slot: "login".into(),
            host: "api.example.com".into(),
            scheme: Scheme::Basic,
            header: "authorization".into(),
        };
        let value = Some("deployment-robot-7:k3Jdh57sLa0qMx81".into());
        let credential_store =
            CredentialStore::new(vec![Credential { binding, value }]).expect("credential_store");
        let known = Arc::new(
            KnownSecrets::from_known(credential_store.known().map(|(_, known)| known)).expect("secrets"),
        );
        let scanner = Scanner::outbound(known).with_tokens(false);
        for (text, found) in [
            ("deployment-robot-7:k3Jdh57sLa0", false),
            ("ZGVwbG95bWVudC1yb2JvdC03Omsz", false),
            ("<57sLa0qMx81>", false),
            ("<h57sLa0qMx81>", true),
            ("ZGVwbG95bWVudC1yb2JvdC03OmszSmRoNTdzTGEwcU14ODE=", true),
        ] {
            assert_eq!(!scanner.scan(text.as_bytes()).findings.is_empty(), found, "{text}");
        }
    }

    fn route(host: &str, auth: &str) -> Route {
        let text = format!("host: {host}\nauth: {auth}\n");
        parse_route(&text, Form::Runtime).expect(auth)
    }

    #[test]
    fn returns_a_value_only_for_its_binding() {
        let credential_store = credential_store();
        let bound = route("api.example.com", "{scheme: header, header: x-api-key, slot: key}");
        let (name, value) = credential_store.header_for(&bound).expect("header");
        assert_eq!((name.as_str(), value.as_bytes()), ("x-api-key", b"real".as_slice()));
        assert!(!format!("{value:?}").contains("real"));
        for (host, auth) in [
            ("api.example.org", "{scheme: header, header: x-api-key, slot: key}"),
            ("'*.example.com'", "{scheme: header, header: x-api-key, slot: key}"),
            ("api.example.com", "{scheme: header, header: x-other-key, slot: key}"),
            ("api.example.com", "{scheme: Bearer, slot: key}"),
            ("api.example.com", "{scheme: header, header: x-api-key, slot: other}"),
        ] {
            assert!(credential_store.header_for(&route(host, auth)).is_none(), "{host} {auth}");
        }
    }
}
