//! Settles the parts of a plan that depend on a secret's value: the form of a login.
//!
//! A plan is built, shown and confirmed before any secret is read. The value then selects between alternatives in the
//! plan.

use std::collections::BTreeMap;

use bottle_contract::credential::Scheme;
use bottle_contract::route::{Auth, RouteError, RouteTable};
use bottle_contract::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use super::build::{PlanError, private};
use super::{Plan, Value};
use crate::provider::{LoginForm, codex};

/// A part of a plan that depends on a secret's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unsettled {
    /// The login takes the first form whose prefix the secret has.
    Forms {
        /// The secret's id.
        secret: String,
        /// The forms; the plan has the last one until it is settled.
        forms: Vec<LoginForm>,
    },
    /// Codex's placeholder login contains the real account id.
    CodexAccount {
        /// The id of the secret with the account's id.
        secret: String,
    },
}

impl Plan {
    /// The settled plan for these values.
    ///
    /// # Errors
    /// [`PlanError::Routes`] if the provider route cannot have the form of its login.
    pub fn settle(mut self, secrets: &BTreeMap<String, SecretText>) -> Result<Self, PlanError> {
        let value = |id: &str| secrets.get(id).map_or("", |secret| secret.0.expose());
        match self.unsettled.take() {
            None => {}
            Some(Unsettled::Forms { secret, forms }) => {
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
            // The manifest's value takes precedence.
            self.env.entry(name).or_insert(Value::Literal(placeholder));
        }
        Ok(())
    }
}

/// Changes the credential scheme and header of the route with this slot.
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
