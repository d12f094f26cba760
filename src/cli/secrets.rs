//! `bottle secrets`: lists and replaces the credentials of a running bottle.

use std::collections::BTreeMap;
use std::str::FromStr;

use bottle_host::Host;
use bottle_lib::report::{Credential, ReplacedCredentials};
use bottle_lib::secrets::{self, select};
use bottle_manifest::secret_ref::SecretRef;
use bottle_plan::secrets::describe;
use bottle_plan::{SecretNeed, SecretSource, source_of};
use bottle_policy::names::Slug;
use clap::Subcommand;

use super::candidates;
use super::read_secrets::read_secrets;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;
use crate::console::signals::Signals;

#[derive(Debug, Subcommand)]
pub(crate) enum Secrets {
    /// List a running bottle's credentials, and where their values come from
    List {
        /// The bottle
        #[arg(add = candidates::running())]
        slug: Slug,
    },
    /// Replace the values of a running bottle's credentials
    ///
    /// Reads the values again from where `bottle start` read them, or asks for them on the terminal. The proxy uses the
    /// new values for the next request, without a restart, and the agent never sees them. It still searches requests
    /// for the old values. If one value cannot be used, no value is replaced. Open WebSockets keep the old values.
    Set {
        /// The bottle
        #[arg(add = candidates::running())]
        slug: Slug,
        /// The credentials to replace, as `bottle secrets list` shows them. All of them by default. `NAME=REFERENCE`
        /// reads the value from another place: a variable's name, `file:PATH`, `keychain:NAME` or `cmd:PROGRAM ARGS`
        #[arg(value_name = "NAME[=REFERENCE]")]
        credentials: Vec<Named>,
    },
}

/// A credential, and the place from which its value is read.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    name: String,
    reference: Option<SecretRef>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, reference) = match text.split_once('=') {
            Some((name, reference)) => (name, Some(reference.parse().map_err(|error| format!("{error}"))?)),
            None => (text, None),
        };
        Ok(Self { name: name.to_owned(), reference })
    }
}

impl Secrets {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::List { slug } => list(host, &slug, output)?,
            Self::Set { slug, credentials } => set(host, &slug, credentials, output)?,
        }
        Ok(exit::DONE)
    }
}

fn list(host: &Host, slug: &Slug, output: &Output) -> Result<(), CliError> {
    let sources = block_on(async { Ok(secrets::sources(host, slug).await?) })?;
    let listed: Vec<Credential> = sources
        .iter()
        .map(|SecretNeed { id, source, purpose, .. }| Credential {
            name: id.clone(),
            source: describe(source),
            purpose: purpose.clone(),
        })
        .collect();
    if listed.is_empty() && !output.json {
        output.note(format!("{slug} has no credentials"));
    }
    let row = |credential: &Credential| {
        [&credential.name, &credential.source, &credential.purpose].map(|text| one_line(text)).to_vec()
    };
    output.print_list(&listed, &["NAME", "SOURCE", "PURPOSE"], 0, row)
}

fn set(host: &Host, slug: &Slug, credentials: Vec<Named>, output: &Output) -> Result<(), CliError> {
    let source = |reference: SecretRef| source_of(&reference, &host.home, &host.user_home);
    let named: Vec<(String, Option<SecretSource>)> =
        credentials.into_iter().map(|named| (named.name, named.reference.map(source))).collect();
    let replaced = block_on(async {
        let mut signals = Signals::catch()?;
        let needs = select(slug, secrets::sources(host, slug).await?, named)?;
        let values = read_secrets(host, &needs, &mut signals, output).await?;
        let values: BTreeMap<_, _> = values.into_iter().map(|(name, value)| (name, value.0)).collect();
        let names: Vec<String> = values.keys().cloned().collect();
        secrets::replace(host, slug, values).await?;
        Ok(names)
    })?;
    if output.json {
        return output.print_json(&ReplacedCredentials { slug: slug.to_string(), credentials: replaced });
    }
    let names: Vec<String> = replaced.iter().map(|name| one_line(name)).collect();
    output.note(format!("{slug} uses the new values of {} from its next request on", names.join(", ")));
    Ok(())
}
