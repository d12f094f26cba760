//! Stores the credentials, each bound to one destination.
//!
//! The launch fixes the bindings. Their values can be replaced at run time: the store then builds a new store, which
//! also contains the replaced values, because they may still be valid and must stay secret. The store returns a value
//! only as a complete header, and only to a route whose slot, host, scheme and header equal the binding.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bottle_policy::credential::{BadCredential, Binding, Scheme, binding, header_value};
use bottle_policy::route::Route;
use bottle_policy::secret::Secret;
use bottle_protocol::session::bundle::Credential;
use bottle_protocol::session::guest::SecretText;
use bottle_protocol::session::replaced::REPLACED_MAX;
use bottle_scan::KnownSecret;
use http::{HeaderName, HeaderValue};

/// The bindings, each with its credential, if the credential has a value.
pub(crate) struct CredentialStore {
    slots: HashMap<Binding, Option<Loaded>>,
    /// The values that other values have replaced, oldest first; at most [`REPLACED_MAX`].
    replaced: Vec<(Binding, Secret)>,
}

/// Why credentials cannot be replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReplaced {
    #[error(transparent)]
    Value(#[from] BadCredential),
    #[error("the bottle has no credential `{slot}`{}", known_names(.known))]
    NoSlot { slot: String, known: BTreeSet<String> },
}

/// Lists the names of the credentials for a message.
fn known_names(known: &BTreeSet<String>) -> String {
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    if names.is_empty() { String::new() } else { format!("; it has {}", names.join(", ")) }
}

#[derive(Clone)]
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
        Ok(Self { slots, replaced: Vec::new() })
    }

    /// Returns a store in which `values` replace the values of these slots.
    ///
    /// # Errors
    /// [`NotReplaced`] if there is no such slot, or a value cannot be sent in its header. All values are checked.
    pub(crate) fn with_values(&self, values: &BTreeMap<String, SecretText>) -> Result<Self, NotReplaced> {
        let known: BTreeSet<String> = self.slots.keys().map(|binding| binding.slot.clone()).collect();
        if let Some(slot) = values.keys().find(|slot| !known.contains(*slot)) {
            return Err(NotReplaced::NoSlot { slot: slot.clone(), known });
        }
        let (mut slots, mut replaced) = (self.slots.clone(), self.replaced.clone());
        for (binding, loaded) in &mut slots {
            let Some(SecretText(value)) = values.get(&binding.slot) else { continue };
            let new = Loaded::new(binding, value.clone())?;
            let old = loaded.replace(new).map(|old| (binding.clone(), old.secret));
            replaced.extend(old.filter(|old| !self.replaced.contains(old)));
            replaced.retain(|(of, secret)| of != binding || secret != value);
        }
        replaced.drain(..replaced.len().saturating_sub(REPLACED_MAX));
        Ok(Self { slots, replaced })
    }

    /// All bindings, including those without a value.
    pub(crate) fn bindings(&self) -> Vec<Binding> {
        self.slots.keys().cloned().collect()
    }

    /// All current and replaced values with their bindings, always in the same order.
    fn entries(&self) -> impl Iterator<Item = (&Binding, &Secret)> {
        let current =
            self.slots.iter().filter_map(|(binding, loaded)| Some((binding, &loaded.as_ref()?.secret)));
        current.chain(self.replaced.iter().map(|(binding, secret)| (binding, secret)))
    }

    /// Whether any binding of `slot` has a value.
    pub(crate) fn holds(&self, slot: &str) -> bool {
        self.slots.iter().any(|(binding, loaded)| binding.slot == slot && loaded.is_some())
    }

    /// The passwords in values of the scheme `basic`. The redactor treats them as separate secrets.
    pub(crate) fn passwords(&self) -> Vec<Secret> {
        let basic = self.entries().filter(|(binding, _)| binding.scheme == Scheme::Basic);
        let values = basic.filter_map(|(_, secret)| secret.expose().trim().split_once(':'));
        values.map(|(_, password)| Secret::new(password.to_owned())).collect()
    }

    /// All current and replaced values with their bindings, for the scanners. In the scheme `basic`, only the password
    /// is secret.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&Binding, KnownSecret<'_>)> {
        self.entries().map(|(binding, secret)| {
            let known = match binding.scheme {
                Scheme::Basic => KnownSecret::login(secret),
                Scheme::Bearer | Scheme::Token | Scheme::Header => KnownSecret::new(secret),
            };
            (binding, known)
        })
    }

    /// All values in the order of [`Self::known`], for the redactor.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Secret> {
        self.entries().map(|(_, secret)| secret)
    }

    /// The header that the proxy adds on `route`, or `None` if the route's binding has no value.
    pub(crate) fn header_for(&self, route: &Route) -> Option<(HeaderName, HeaderValue)> {
        let loaded = self.slots.get(&binding(route)?)?.as_ref()?;
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

    #[test]
    fn replaces_all_values_or_none() {
        let text = |value: &str| SecretText::from(value);
        let of = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(slot, value)| ((*slot).to_owned(), text(value))).collect::<BTreeMap<_, _>>()
        };
        let bound = route("api.example.com", "{scheme: header, header: x-api-key, slot: key}");
        let sent = |store: &CredentialStore| {
            store.header_for(&bound).map(|(_, value)| value.to_str().expect("text").to_owned())
        };
        let values = |store: &CredentialStore| {
            store.values().map(|secret| secret.expose().to_owned()).collect::<Vec<_>>()
        };
        let first = credential_store();
        let second = first.with_values(&of(&[("key", "second")])).expect("replaced");
        assert_eq!(
            (sent(&second).as_deref(), values(&second)),
            (Some("second"), vec!["second".into(), "real".into()])
        );
        assert_eq!(sent(&first).as_deref(), Some("real"), "requests in flight keep their value");
        // A value that is set again is not listed twice.
        let again = second.with_values(&of(&[("key", "real")])).expect("replaced");
        assert_eq!(values(&again), ["real", "second"]);
        assert_eq!(
            values(&again.with_values(&of(&[("key", "real")])).expect("replaced")),
            ["real", "second"]
        );
        for (pairs, why) in [
            (&[("key", "third"), ("other", "x")][..], "the bottle has no credential `other`; it has key"),
            (&[("key", "a\nb")], "contains a line break"),
        ] {
            let error = second.with_values(&of(pairs)).err().expect("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
        let many = (0..=REPLACED_MAX).fold(second, |store, number| {
            store.with_values(&of(&[("key", &format!("value-{number}"))])).expect("replaced")
        });
        assert_eq!(values(&many).len(), REPLACED_MAX + 1);
    }
}
