//! The credentials of a running bottle: where their values come from, and new values for them.

use std::collections::BTreeMap;

use bottle_host::{Host, account};
use bottle_instance::{Store, credentials};
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest, NewSecrets};
use bottle_plan::{SecretNeed, SecretSource};
use bottle_policy::names::Slug;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::SecretText;

use super::connect::{connect, keeper_lost, unexpected_answer};
use super::failure::{Failure, Kind};

/// Returns the sources from which the launch read the bottle's credentials. The id of each is the credential's name:
/// the host of its route.
///
/// # Errors
/// When the bottle does not run, or an earlier version of this program started it.
pub async fn sources(host: &Host, slug: &Slug) -> Result<Vec<SecretNeed>, Failure> {
    // The connection shows that the bottle runs.
    connect(host, slug).await?;
    read(host, slug)?.ok_or_else(|| {
        Failure::state("the sources of its credentials are unknown, because an earlier version started it")
            .about(slug)
            .hint(format!("`bottle stop {slug}`, then `bottle resume {slug}`, reads all secrets again"))
    })
}

fn read(host: &Host, slug: &Slug) -> Result<Option<Vec<SecretNeed>>, Failure> {
    let directory = Store::of(host).directory(slug);
    let path = credentials::path(&directory);
    credentials::read(&directory).map_err(|error| Failure::path("read", &path, error))
}

/// Replaces the values of credentials of a running bottle by name. The proxy uses the new values for the next request.
/// The agent does not notice the change. All sidecars search for the old values too. If one value cannot be used, no
/// value is replaced. The values are never written to disk.
///
/// # Errors
/// When the bottle does not run or has no such credential, or when a value cannot be used.
pub async fn replace(host: &Host, slug: &Slug, values: BTreeMap<String, Secret>) -> Result<(), Failure> {
    let channel = connect(host, slug).await?;
    let sources = read(host, slug)?.unwrap_or_default();
    if let Some(need) = sources.iter().find(|need| has_other_form(need, &values)) {
        return Err(Failure::new(
            Kind::Secret,
            format!("the value for {} is of another kind of login", need.id),
        )
        .about(slug)
        .hint(format!(
            "nothing was changed; the launch chose how this login is sent: `bottle stop {slug}`, then \
                 `bottle resume {slug}`"
        )));
    }
    let values = values.into_iter().map(|(name, value)| (name, SecretText(value))).collect();
    let request = KeeperRequest::ReplaceSecrets(Box::new(NewSecrets { values, by: account::own_name() }));
    let mut stream = channel.open(&request).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
        KeeperEvent::Done => Ok(()),
        KeeperEvent::Refused(why) => Err(Failure::new(Kind::Secret, why)
            .about(slug)
            .hint(format!("`bottle audit show {slug}` lists changes"))),
        _ => Err(unexpected_answer()),
    }
}

fn has_other_form(need: &SecretNeed, values: &BTreeMap<String, Secret>) -> bool {
    let value = values.get(&need.id).zip(need.form.as_ref());
    value.is_some_and(|(value, form)| !form.is_of(value.expose()))
}

/// Selects the sources to read: the sources of these credentials, or all sources if no credential is named. A
/// credential with a source of its own is read from there instead.
///
/// # Errors
/// When the bottle has no such credential, or has no credentials at all.
pub fn select(
    slug: &Slug,
    sources: Vec<SecretNeed>,
    named: Vec<(String, Option<SecretSource>)>,
) -> Result<Vec<SecretNeed>, Failure> {
    if sources.is_empty() {
        return Err(Failure::state(format!("{slug} has no credentials"))
            .about(slug)
            .hint("a route with `auth` in the bottle's manifest sends a credential"));
    }
    if named.is_empty() {
        return Ok(sources);
    }
    let find = |(name, source): (String, Option<SecretSource>)| {
        let Some(need) = sources.iter().find(|need| need.id == name) else {
            let names: Vec<&str> = sources.iter().map(|need| need.id.as_str()).collect();
            return Err(Failure::usage(format!("the bottle has no credential `{name}`"))
                .about(slug)
                .hint(format!("it has {}", names.join(", "))));
        };
        Ok(SecretNeed { source: source.unwrap_or_else(|| need.source.clone()), ..need.clone() })
    };
    named.into_iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(name: &str) -> SecretNeed {
        let source = SecretSource::Env(name.to_uppercase());
        SecretNeed { id: name.to_owned(), source, purpose: String::new(), form: None }
    }

    #[test]
    fn selects_sources_by_name() {
        let slug: Slug = "one".parse().expect("a slug");
        let (a, b) = (need("a"), need("b"));
        let other = SecretSource::Env("OTHER".to_owned());
        let of_b = SecretNeed { source: other.clone(), ..b.clone() };
        for (named, wanted) in [
            (vec![], Ok(vec![a.clone(), b.clone()])),
            (vec![("b".to_owned(), None)], Ok(vec![b.clone()])),
            (vec![("b".to_owned(), Some(other)), ("a".to_owned(), None)], Ok(vec![of_b, a.clone()])),
            (vec![("a".to_owned(), None), ("c".to_owned(), None)], Err("the bottle has no credential `c`")),
        ] {
            let selected = select(&slug, vec![a.clone(), b.clone()], named);
            assert_eq!(selected.map_err(|failure| failure.message), wanted.map_err(str::to_owned));
        }
        assert!(select(&slug, vec![], vec![]).is_err());
    }
}
