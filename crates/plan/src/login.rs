//! Settles the parts of a plan that depend on the value of a secret, such as the form of a login.
//!
//! A plan is built, shown and confirmed before any secret is read. Afterwards, the value of a secret selects one of the
//! alternatives in the plan.

use std::collections::BTreeMap;

use bottle_manifest::provider::{LoginForm, codex};
use bottle_policy::credential::Scheme;
use bottle_policy::route::{Auth, RouteError, RouteTable};
use bottle_protocol::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use super::build::{PlanError, private};
use super::{Plan, Value};

/// A part of a plan that depends on the value of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unsettled {
    /// The form of a login. The first form whose prefix matches the secret's value applies.
    Forms {
        /// The id of the secret whose value selects the form.
        secret: String,
        /// The possible forms. Until the secret's value selects a form, the plan contains the last form.
        forms: Vec<LoginForm>,
    },
    /// The placeholder file for codex's login. The file has to contain the real account id.
    CodexAccount {
        /// The id of the secret that contains the account id.
        secret: String,
    },
}

/// The form of a login's value. The launch fixes the header and the scheme of a login, so a later value must have the
/// same form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenForm {
    /// The prefixes of the possible forms. The first prefix that matches a value selects its form.
    prefixes: Vec<String>,
    /// The prefix of the form that the launch selected.
    chosen: String,
}

impl ChosenForm {
    fn of(forms: &[LoginForm], value: &str) -> Option<Self> {
        let prefixes: Vec<String> = forms.iter().map(|form| form.prefix.clone()).collect();
        let chosen = prefixes.iter().find(|prefix| value.starts_with(prefix.as_str()))?.clone();
        Some(Self { prefixes, chosen })
    }

    /// Whether a value has the form that the launch selected.
    #[must_use]
    pub fn is_of(&self, value: &str) -> bool {
        self.prefixes.iter().find(|prefix| value.starts_with(prefix.as_str())) == Some(&self.chosen)
    }
}

impl Plan {
    /// Settles the plan with the values of its secrets.
    ///
    /// # Errors
    /// Returns [`PlanError::Routes`] if the provider route cannot use the form of the login.
    pub fn settle(mut self, secrets: &BTreeMap<String, SecretText>) -> Result<Self, PlanError> {
        let value = |id: &str| secrets.get(id).map_or("", |secret| secret.0.expose());
        match self.unsettled.take() {
            None => {}
            Some(Unsettled::Forms { secret, forms }) => {
                let chosen = ChosenForm::of(&forms, value(&secret));
                for need in self.secrets.iter_mut().filter(|need| need.id == secret) {
                    need.form.clone_from(&chosen);
                }
                if let Some(form) = forms.into_iter().find(|form| value(&secret).starts_with(&form.prefix)) {
                    self.apply_form(&secret, form)?;
                }
            }
            Some(Unsettled::CodexAccount { secret }) => {
                self.placeholders.push(codex::placeholder_token(value(&secret)));
                let file = codex::placeholder_login(value(&secret));
                self.files.push(private(file.path, file.content));
            }
        }
        Ok(self)
    }

    fn apply_form(&mut self, slot: &str, form: LoginForm) -> Result<(), PlanError> {
        self.egress.routes =
            with_form(&self.egress.routes, slot, form.scheme, &form.header).map_err(PlanError::Routes)?;
        for (name, placeholder) in form.env {
            self.placeholders.push(placeholder.clone());
            // A value in the manifest takes precedence over the placeholder.
            self.env.entry(name).or_insert(Value::Literal(placeholder));
        }
        Ok(())
    }
}

/// Sets the authentication scheme and header of the route that uses this slot.
fn with_form(table: &RouteTable, slot: &str, scheme: Scheme, header: &str) -> Result<RouteTable, RouteError> {
    let changed = table.routes().iter().cloned().map(|mut route| {
        route.auth = route.auth.map(|auth| match auth.source.name() == slot && route.provider {
            true => Auth { scheme, header: header.to_owned(), source: auth.source },
            false => auth,
        });
        route
    });
    table.with_routes(changed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_value_needs_the_same_form() {
        let form = |prefix: &str| LoginForm {
            prefix: prefix.to_owned(),
            scheme: Scheme::Bearer,
            header: "authorization".to_owned(),
            env: BTreeMap::new(),
        };
        let forms = [form("sk-oat"), form("sk-"), form("")];
        for (value, same, other) in [
            ("sk-oat-1", "sk-oat-2", "sk-api-1"),
            ("sk-api-1", "sk-api-2", "sk-oat-1"),
            ("other", "another", "sk-api-1"),
        ] {
            let chosen = ChosenForm::of(&forms, value).expect("a form");
            assert_eq!((chosen.is_of(same), chosen.is_of(other)), (true, false), "{value}");
        }
        assert_eq!(ChosenForm::of(&forms[..2], "other"), None);
    }
}
