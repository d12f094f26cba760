//! Tests the API client against a fake forge over TLS. The fake forge checks the client's requests.

use bottle_host::causes::one_line;
use bottle_test_support::authority::Authority;
use bottle_test_support::forge::{Dialect, Forge, REPOSITORY, TOKEN, Trouble};

use super::*;

const BOTH: [Dialect; 2] = [Dialect::Gitea, Dialect::Github];

struct Scene {
    authority: Authority,
    forge: Forge,
    keys: Keys,
    token: Secret,
    key: SshKey,
}

impl Scene {
    fn new(dialect: Dialect) -> Self {
        let authority = Authority::new("of a test").expect("authority");
        let forge = Forge::start(dialect, &authority).expect("a forge");
        let kind = match dialect {
            Dialect::Gitea => Kind::Gitea,
            Dialect::Github => Kind::Github,
        };
        let keys = Keys::new(kind, Some(&forge.api()), "unused.example.com", "/team/tool.git").expect("keys");
        let token = Secret::new(TOKEN.to_owned());
        Self { authority, forge, keys, token, key: SshKey::generate().expect("a key") }
    }

    fn api(&self) -> Api<'_> {
        Api { keys: &self.keys, token: &self.token, roots: self.authority.pem() }
    }

    fn named(&self, id: Option<u64>) -> Named<'_> {
        Named { title: "bottle a-1", public: &self.key.public, id }
    }

    async fn register(&self) -> Result<u64, ForgeError> {
        self.api().register(self.named(None), false).await
    }

    async fn revoke(&self, id: Option<u64>) -> Result<(), ForgeError> {
        self.api().revoke(self.named(id)).await
    }
}

#[tokio::test]
async fn registers_a_key_and_revokes_it_by_id() {
    for dialect in BOTH {
        let scene = Scene::new(dialect);
        scene.forge.add("another's", "ssh-ed25519 AAAA");
        for read_only in [false, true] {
            let id = scene.api().register(scene.named(None), read_only).await.expect("registered");
            let found = scene.forge.keys().into_iter().find(|key| key.id == id).expect("the key exists");
            assert_eq!((found.title.as_str(), found.read_only), ("bottle a-1", read_only));
            assert_eq!(found.key, scene.key.public);
            scene.revoke(Some(id)).await.expect("revoked");
            assert_eq!(scene.forge.keys().len(), 1, "the other key stays");
            scene.revoke(Some(id)).await.expect("revoked already");
        }
        assert_eq!(scene.forge.faults(), [""; 0]);
    }
}

#[tokio::test]
async fn finds_the_key_of_an_unanswered_request_by_its_public_half() {
    for dialect in BOTH {
        let scene = Scene::new(dialect);
        // The keys fill more than one page, and one of these keys has the title of the new key.
        for number in 0..5 {
            scene.forge.add(&format!("bottle a-{number}"), &format!("ssh-ed25519 AAAA{number}"));
        }
        scene.revoke(None).await.expect("there is none");
        let key = Named { title: "bottle another", ..scene.named(None) };
        scene.forge.next(Method::POST, Trouble::ClosesAfter);
        let error = scene.api().register(key, false).await.expect_err("no answer");
        assert!(error.is_unsure(), "{error:?}");
        assert_eq!(scene.forge.keys().len(), 6, "the key was created");
        scene.revoke(None).await.expect("found and revoked");
        assert_eq!(scene.forge.keys().len(), 5);
    }
}

#[tokio::test]
async fn every_error_response_has_a_hint() {
    let exhausted = vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")];
    for dialect in BOTH {
        for (status, headers, message, words, next) in [
            (
                401,
                vec![],
                "Bad credentials",
                "does not accept the token (401): Bad credentials",
                "`token_ref`",
            ),
            (
                403,
                vec![],
                "no scope",
                "may not do that (403): no scope",
                match dialect {
                    Dialect::Gitea => "`write:repository`",
                    Dialect::Github => "`Administration: read and write`",
                },
            ),
            (403, exhausted.clone(), "", "limits the rate of requests (403)", "try again after 1970"),
            (404, vec![], "Not Found", "no such repository for the token (404)", "`api_url`"),
            (422, vec![], "Key title has been used", "such a key already", "`bottle cleanup`"),
            (429, vec![("retry-after", "9")], "", "limits the rate of requests (429)", "try again in 9 s"),
            (301, vec![("location", "https://elsewhere.example")], "", "it redirects (301)", "`url`"),
            (500, vec![], "", "it answered 500", "try again"),
        ] {
            let scene = Scene::new(dialect);
            scene.forge.next(Method::POST, Trouble::Status(status, headers, message));
            let error = scene.register().await.expect_err("refused");
            assert!(one_line(&error).contains(words), "{status}: {error:?}");
            for named in ["\"bottle a-1\"", REPOSITORY, "127.0.0.1:"] {
                assert!(one_line(&error).contains(named), "{status}: {error:?}");
            }
            assert!(error.hint.contains(next), "{status}: {}", error.hint);
            assert_eq!(error.is_unsure(), status == 500, "{status}");
            assert!(!format!("{error:?}").contains(TOKEN));
            assert_eq!(scene.forge.keys(), []);
        }
    }
}

#[tokio::test]
async fn reports_keys_it_cannot_revoke_or_cannot_see() {
    for dialect in BOTH {
        let scene = Scene::new(dialect);
        let id = scene.register().await.expect("registered");
        for (method, status) in [(Method::DELETE, 401), (Method::DELETE, 403), (Method::DELETE, 404)] {
            scene.forge.next(method, Trouble::Status(status, vec![], ""));
            let error = scene.revoke(Some(id)).await.expect_err("still there");
            assert!(one_line(&error).contains(&format!("(id {id})")), "{error:?}");
            assert!(error.hint.contains("by hand"), "{}", error.hint);
        }
        // The token no longer has access to the repository.
        scene.forge.next(Method::DELETE, Trouble::Status(404, vec![], ""));
        scene.forge.next(Method::GET, Trouble::Status(404, vec![], ""));
        let _ = scene.revoke(Some(id)).await.expect_err("unknown");
        scene.revoke(Some(id)).await.expect("revoked");
    }
}

#[tokio::test]
async fn times_out_on_a_forge_that_hangs() {
    let scene = Scene::new(Dialect::Gitea);
    scene.forge.next(Method::POST, Trouble::HangsAfter);
    // The test pauses its clock, and advances the clock after the call has arrived. The fake forge runs on a thread
    // with another clock.
    let waiting = async {
        while scene.forge.calls().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::pause();
        tokio::time::advance(https::CALL_TIMEOUT).await;
        std::future::pending::<()>().await;
    };
    let error = tokio::select! {
        answer = scene.register() => answer.expect_err("it hangs"),
        () = waiting => unreachable!("it waits forever"),
    };
    assert!(one_line(&error).contains("did not answer within 30 s") && error.is_unsure(), "{error:?}");
    tokio::time::resume();
    scene.revoke(None).await.expect("found and revoked");
    assert_eq!(scene.forge.keys(), []);
}

#[tokio::test]
async fn sends_nothing_to_an_untrusted_or_missing_forge() {
    let scene = Scene::new(Dialect::Github);
    let other = Authority::new("another").expect("authority");
    let api = Api { roots: other.pem(), ..scene.api() };
    let error = api.register(scene.named(None), false).await.expect_err("not its authority");
    assert!(one_line(&error).contains("certificate") && !error.is_unsure(), "{error:?}");
    let keys = Keys { api: "https://127.0.0.1:1".to_owned(), ..scene.keys.clone() };
    let error = Api { keys: &keys, ..scene.api() }.register(scene.named(None), false).await;
    let error = error.expect_err("nobody listens");
    assert!(error.hint.contains("https://127.0.0.1:1") && !error.is_unsure(), "{error:?}");
    let token = Secret::new("two\nlines".to_owned());
    let error = Api { token: &token, ..scene.api() }.register(scene.named(None), false).await;
    assert!(one_line(&error.expect_err("no token")).contains("invalid characters"));
    assert_eq!(scene.forge.calls(), [""; 0]);
}

#[tokio::test]
async fn refuses_malformed_responses() {
    let scene = Scene::new(Dialect::Gitea);
    scene.forge.next(Method::POST, Trouble::Status(201, vec![], "no id"));
    let error = scene.register().await.expect_err("no id");
    assert!(one_line(&error).contains("has no id") && error.is_unsure(), "{error:?}");
    scene.forge.next(Method::GET, Trouble::Status(200, vec![], "no list"));
    let error = scene.revoke(None).await.expect_err("no list");
    assert!(one_line(&error).contains("not a list of keys"), "{error:?}");
}
