//! Collects the secrets that a launch needs. Does not read their values.

use std::path::Path;

use bottle_manifest::env_value::EnvValue;
use bottle_manifest::host_path;
use bottle_manifest::secret_ref::SecretRef;

use super::{SecretNeed, SecretSource};

/// The secrets that a launch needs.
#[derive(Debug, Default)]
pub(super) struct Needs(Vec<SecretNeed>);

impl Needs {
    /// Adds a secret and returns its id. `id` identifies the secret in the plan and in the launch order.
    pub(super) fn add(&mut self, id: String, source: SecretSource, purpose: String) -> String {
        self.0.push(SecretNeed { id: id.clone(), source, purpose, form: None });
        id
    }

    pub(super) fn into_list(self) -> Vec<SecretNeed> {
        self.0
    }
}

/// Converts a secret reference to a source. Makes paths absolute, because the keeper has a different working directory.
#[must_use]
pub fn source_of(reference: &SecretRef, bottle_home: &Path, user_home: &Path) -> SecretSource {
    match reference {
        SecretRef::Variable(name) => SecretSource::Env(name.clone()),
        SecretRef::File(path) => SecretSource::File(host_path::absolute(path, bottle_home, user_home)),
        SecretRef::Keychain(name) => SecretSource::Keychain(name.clone()),
        SecretRef::Command(argv) => SecretSource::Command(argv.clone()),
    }
}

/// Converts the value of an environment variable to a source. Returns `None` for a literal value.
pub(super) fn source_of_env(value: &EnvValue) -> Option<SecretSource> {
    match value {
        EnvValue::Literal(_) => None,
        EnvValue::Variable(name) => Some(SecretSource::Env(name.clone())),
        EnvValue::Prompt(text) => Some(SecretSource::Prompt(text.clone())),
    }
}
