//! Defines rules for the tokens of cloud providers and hosting services. The rules are based on documented formats.

use super::row::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("aws-access-key-id", "an AWS access key id", &["AKIA", "ASIA", "ABIA", "ACCA"], r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b", &["AKIA<16U>", "id: ASIA<16U>,"], &["AKIA<12U>", "AKIA<16h>"]),
    row("aws-secret-access-key", "an AWS secret access key", &["secret_access_key", "secretaccesskey", "secret-access-key", "secret.access.key", "secret access key", "awssecret", "s3secret"], r"(?i:(?:aws|s3)?secret[_. -]?access[_. -]?key|(?:aws|s3)secretkey)@~([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|\z)", &["AWS_SECRET_ACCESS_KEY=<40B>", "\"SecretAccessKey\": \"<40B>\"", "aws_secret_access_key: <40B>", "ENV AWS_SECRET_ACCESS_KEY <40B>", "ENV AWS_SECRET_ACCESS_KEY=\"<40B>\"", "secret_access_key: '<40B>'", ":secret_access_key => '<40B>'", "secret_access_key = \"<40B>\"", "aws.secretAccessKey=<40B>", "awsSecretAccessKey: '<40B>'", "awsSecretKey=<40B>", "set -x AWS_SECRET_ACCESS_KEY <40B>", "- name: AWS_SECRET_ACCESS_KEY\n          value: <40B>", "{\"name\":\"AWS_SECRET_ACCESS_KEY\",\"value\":\"<40B>\"}", "<SecretAccessKey><40B></SecretAccessKey>", "secret-access-key: <40B>", "<name>x.secret.access.key</name>\n<value><40B></value>"], &["aws_secret_access_key=<20w>", "secret_access_key = ENV['AWS_SECRET_ACCESS_KEY']", "ENV AWS_SECRET_ACCESS_KEY ${AWS_SECRET_ACCESS_KEY}", "secret_access_key: <40h>"]).entropy(4.1),
    row("aws-secret-key-field", "an AWS secret access key", &["secret_key", "secretkey", "secret-key", "secret.key", "'secret'", "\"secret\""], r"['\x22]?(?i:secret(?:[_.-]?key|['\x22]))@~([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|\z)", &["access_key = \"AKIA<16U>\"\nsecret_key = \"<40B>\"", "aws.secretKey=<40B>", "aws_secret_key: <40B>", "fs.s3a.secret.key=<40B>", "cloud.aws.credentials.secret-key: <40B>", "'credentials' => ['key' => 'AKIA<16U>', 'secret' => '<40B>']"], &["secret_key = '<40B>'", "s3.secret_key = '<40h>'"]).entropy(4.1).beside(is_of_aws),
    row("aws-key-pair", "an AWS secret access key", &["AKIA", "ASIA"], r"(?:AKIA|ASIA)[A-Z2-7]{16}\\{0,3}['\x22`]?\s{0,4}[,:;|\t ]\s{0,4}\\{0,3}['\x22`]?([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|\z)", &["AKIA<16U>,<40B>", "Credentials.new('AKIA<16U>', '<40B>')", "AKIA<16U>:<40B>"], &["AKIA<16U>,<40h>", "AKIA<16U>"]).entropy(4.1),
    row("aws-session-token", "an AWS session token", &["aws_session_token", "sessiontoken"], r"(?i:aws_session_token|sessiontoken)@=([A-Za-z0-9/+=]{100,1500})", &["aws_session_token = <160B>"], &["aws_session_token = <30B>"]).reach(1700).entropy(3.5),
    row("aws-bedrock-api-key", "an Amazon Bedrock key", &["ABSK"], r"ABSK[A-Za-z0-9+/]{109,269}={0,2}", &["ABSK<120B>"], &["ABSK<40B>"]),
    row("aws-bedrock-short-key", "a short-lived Amazon Bedrock key", &["bedrock-api-key-"], r"bedrock-api-key-[A-Za-z0-9+/=_-]{40,1500}", &["bedrock-api-key-<90b>"], &["bedrock-api-key-<12b>"]).reach(1600),
    row("aws-mws-token", "an Amazon Marketplace token", &["amzn.mws."], r"amzn\.mws\.[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", &["amzn.mws.<8h>-<4h>-<4h>-<4h>-<12h>"], &["amzn.mws.<8h>"]),
    row("gcp-api-key", "a Google API key", &["AIza"], r"AIza[0-9A-Za-z_-]{35}(?:[^0-9A-Za-z_-]|\z)", &["AIza<35b>", "?key=AIza<35b>&x"], &["AIza<20b>"]),
    row("gcp-oauth-client-secret", "a Google OAuth client secret", &["GOCSPX-"], r"GOCSPX-[0-9A-Za-z_-]{28}", &["GOCSPX-<28b>"], &["GOCSPX-<10b>"]),
    row("gcp-access-token", "a Google access token", &["ya29."], r"ya29\.[0-9A-Za-z_-]{30,400}", &["ya29.<60b>"], &["ya29.<10b>"]),
    row("gcp-refresh-token", "a Google refresh token", &["1//0"], r"1//0[0-9A-Za-z_-]{40,200}", &["1//0<60b>"], &["1//0<20b>"]).entropy(3.5),
    row("gcp-service-account-key", "the key id of a Google service account", &["private_key_id"], r"private_key_id@=([0-9a-f]{40})\b", &["\"private_key_id\": \"<40h>\""], &["\"private_key_id\": \"<20h>\""]),
    row("azure-storage-key", "an Azure storage key", &["accountkey="], r"(?i:accountkey)=([A-Za-z0-9+/]{86}==)", &["AccountName=x;AccountKey=<86B>=="], &["AccountKey=<40B>=="]),
    row("azure-shared-access-key", "an Azure shared access key", &["sharedaccesskey="], r"(?i:sharedaccesskey)=([A-Za-z0-9+/]{43}=)", &["SharedAccessKeyName=n;SharedAccessKey=<43B>="], &["SharedAccessKey=<20B>="]),
    row("azure-sas-signature", "an Azure shared access signature", &["sig="], r"sig=([A-Za-z0-9%/+]{40,70}(?:%3[dD]|=))", &["&sig=<43w>%3D"], &["&sig=<20w>%3D"]).entropy(3.5),
    row("azure-client-secret", "an Azure client secret", &["client_secret", "clientsecret"], r"(?i:client_?secret)@=([A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34})", &["AZURE_CLIENT_SECRET=<3w><1d>Q~<34w>"], &["AZURE_CLIENT_SECRET=<3w><1d>Q~<10w>"]),
    row("azure-devops-token", "an Azure DevOps token", &["AZDO"], r"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b", &["<76w>AZDO<4w>"], &["<20w>AZDO<4w>"]).lookbehind(76),
    row("azure-common-key", "an Azure key", &["JQQJ99"], r"[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}\b", &["<52w>JQQJ99<26w>"], &["<12w>JQQJ99<26w>"]).lookbehind(52),
    row("azure-function-key", "an Azure Functions key", &["AzFu"], r"[A-Za-z0-9_-]{44}AzFu[A-Za-z0-9_-]{6,8}==", &["<44b>AzFu<8b>=="], &["<12b>AzFu<8b>=="]).lookbehind(44),
    row("azure-search-key", "an Azure Search key", &["AzSe"], r"[A-Za-z0-9]{42}AzSe[A-Za-z0-9]{6}\b", &["<42w>AzSe<6w>"], &["<12w>AzSe<6w>"]).lookbehind(42),
    row("azure-registry-key", "an Azure Container Registry key", &["+ACR"], r"[A-Za-z0-9/+]{42}\+ACR[A-Za-z0-9]{6}\b", &["<42w>+ACR<6w>"], &["<12w>+ACR<6w>"]).lookbehind(42),
    row("azure-cosmos-key", "an Azure Cosmos DB key", &["ACDb"], r"[A-Za-z0-9/+]{76}ACDb[A-Za-z0-9+/]{5,6}={1,2}", &["<76w>ACDb<6w>=="], &["<12w>ACDb<6w>=="]).lookbehind(76),
    row("azure-redis-key", "an Azure Cache for Redis key", &["AzCa"], r"[A-Za-z0-9]{33}AzCa[A-Za-z0-9]{6}=", &["<33w>AzCa<6w>="], &["<12w>AzCa<6w>="]).lookbehind(33),
    row("azure-storage-marked-key", "an Azure storage key", &["+ASt"], r"[A-Za-z0-9/+]{76}\+ASt[A-Za-z0-9+/]{6}==", &["<76w>+ASt<6w>=="], &["<12w>+ASt<6w>=="]).lookbehind(76),
    row("azure-service-bus-key", "an Azure Service Bus key", &["+ASb"], r"[A-Za-z0-9/+]{33}\+ASb[A-Za-z0-9+/]{6}=", &["<33w>+ASb<6w>="], &["<12w>+ASb<6w>="]).lookbehind(33),
    row("azure-event-hub-key", "an Azure Event Hubs key", &["+AEh"], r"[A-Za-z0-9/+]{33}\+AEh[A-Za-z0-9+/]{6}=", &["<33w>+AEh<6w>="], &["<12w>+AEh<6w>="]).lookbehind(33),
    row("digitalocean-token", "a DigitalOcean token", &["dop_v1_"], r"dop_v1_[a-f0-9]{64}\b", &["dop_v1_<64h>"], &["dop_v1_<32h>"]),
    row("digitalocean-oauth-token", "a DigitalOcean OAuth token", &["doo_v1_"], r"doo_v1_[a-f0-9]{64}\b", &["doo_v1_<64h>"], &["doo_v1_<32h>"]),
    row("digitalocean-refresh-token", "a DigitalOcean refresh token", &["dor_v1_"], r"dor_v1_[a-f0-9]{64}\b", &["dor_v1_<64h>"], &["dor_v1_<32h>"]),
    row("alibaba-access-key-id", "an Alibaba Cloud access key id", &["LTAI"], r"LTAI[A-Za-z0-9]{12,20}\b", &["LTAI<20w>"], &["LTAI<6w>"]).entropy(3.2),
    row("tencent-secret-id", "a Tencent Cloud secret id", &["AKID"], r"AKID[A-Za-z0-9]{32}\b", &["AKID<32w>"], &["AKID<16w>"]).entropy(3.2),
    row("yandex-api-key", "a Yandex Cloud key", &["AQVN"], r"AQVN[A-Za-z0-9_-]{35,38}(?:[^A-Za-z0-9_-]|\z)", &["AQVN<36b>"], &["AQVN<10b>"]),
    row("heroku-api-key", "a Heroku key", &["HRKU-"], r"HRKU-[A-Za-z0-9_-]{58,60}", &["HRKU-<60b>"], &["HRKU-<20b>"]),
    row("heroku-uuid-key", "a Heroku key", &["heroku_api_key"], r"(?i:heroku_api_key)@=([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})", &["HEROKU_API_KEY=<8h>-<4h>-<4h>-<4h>-<12h>"], &["HEROKU_API_KEY=<8h>"]),
    row("cloudflare-origin-ca-key", "a Cloudflare origin CA key", &["v1.0-"], r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}", &["v1.0-<24h>-<146h>"], &["v1.0-<24h>-<20h>"]),
    row("cloudflare-api-token", "a Cloudflare token", &["cloudflare_api_token", "cf_api_token"], r"(?i:(?:cloudflare|cf)_api_token)@=([A-Za-z0-9_-]{40})(?:[^A-Za-z0-9_-]|\z)", &["CLOUDFLARE_API_TOKEN=<40b>"], &["CLOUDFLARE_API_TOKEN=<12b>"]).entropy(3.2),
    row("cloudflare-global-key", "a Cloudflare global key", &["cloudflare_api_key", "cf_api_key", "x-auth-key"], r"(?i:(?:cloudflare|cf)_api_key|x-auth-key)@=([a-f0-9]{37})\b", &["X-Auth-Key: <37h>"], &["X-Auth-Key: <20h>"]),
    row("fly-token", "a Fly.io token", &["FlyV1 "], r"FlyV1 fm[0-9][a-z]?_[A-Za-z0-9+/=,_-]{80,1500}", &["FlyV1 fm2_<120B>"], &["FlyV1 fm2_<20B>"]).reach(1600),
    row("fly-oauth-token", "a Fly.io token", &["fo1_"], r"fo1_[A-Za-z0-9_-]{43}", &["fo1_<43b>"], &["fo1_<12b>"]),
    row("vercel-token", "a Vercel token", &["vercel_token"], r"(?i:vercel_token)@=([A-Za-z0-9]{24})\b", &["VERCEL_TOKEN=<24w>"], &["VERCEL_TOKEN=<8w>"]).entropy(3.2),
    row("netlify-token", "a Netlify token", &["nfp_"], r"nfp_[A-Za-z0-9_]{36}", &["nfp_<36w>"], &["nfp_<12w>"]),
    row("render-api-key", "a Render key", &["rnd_"], r"rnd_[A-Za-z0-9]{28,32}\b", &["rnd_<28w>"], &["rnd_<12w>"]).entropy(3.2),
    row("scaleway-secret-key", "a Scaleway secret key", &["scw_secret_key"], r"(?i:scw_secret_key)@=([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", &["SCW_SECRET_KEY=<8h>-<4h>-<4h>-<4h>-<12h>"], &["SCW_SECRET_KEY=<8h>"]),
    row("hetzner-token", "a Hetzner Cloud token", &["hcloud_token"], r"(?i:hcloud_token)@=([A-Za-z0-9]{64})\b", &["HCLOUD_TOKEN=<64w>"], &["HCLOUD_TOKEN=<20w>"]).entropy(3.5),
    row("linode-token", "a Linode token", &["linode_token", "linode_cli_token"], r"(?i:linode_(?:cli_)?token)@=([a-f0-9]{64})\b", &["LINODE_TOKEN=<64h>"], &["LINODE_TOKEN=<20h>"]),
    row("terraform-cloud-token", "a Terraform Cloud token", &[".atlasv1."], r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}", &["<14w>.atlasv1.<67b>"], &["<14w>.atlasv1.<20b>"]).lookbehind(14),
    row("vault-service-token", "a Vault token", &["hvs."], r"hvs\.[A-Za-z0-9_-]{24,200}", &["hvs.<95b>"], &["hvs.<10b>"]).entropy(3.2),
    row("vault-batch-token", "a Vault batch token", &["hvb."], r"hvb\.[A-Za-z0-9_-]{100,400}", &["hvb.<140b>"], &["hvb.<30b>"]),
    row("vault-recovery-token", "a Vault recovery token", &["hvr."], r"hvr\.[A-Za-z0-9_-]{24,200}", &["hvr.<40b>"], &["hvr.<10b>"]).entropy(3.2),
    row("pulumi-token", "a Pulumi token", &["pul-"], r"pul-[a-f0-9]{40}\b", &["pul-<40h>"], &["pul-<20h>"]),
    row("databricks-token", "a Databricks token", &["dapi"], r"dapi[a-f0-9]{32}(?:-[0-9])?\b", &["dapi<32h>", "dapi<32h>-2"], &["dapi<12h>"]),
    row("doppler-personal-token", "a Doppler token", &["dp.pt."], r"dp\.pt\.[A-Za-z0-9]{40,44}\b", &["dp.pt.<43w>"], &["dp.pt.<12w>"]),
    row("doppler-service-token", "a Doppler service token", &["dp.st.", "dp.sa."], r"dp\.s[ta]\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}\b", &["dp.st.prd.<43w>", "dp.sa.<43w>"], &["dp.st.prd.<12w>"]),
    row("supabase-token", "a Supabase token", &["sbp_"], r"sbp_[a-f0-9]{40}\b", &["sbp_<40h>"], &["sbp_<12h>"]),
    row("supabase-secret-key", "a Supabase secret key", &["sb_secret_"], r"sb_secret_[A-Za-z0-9_-]{31,36}", &["sb_secret_<31b>"], &["sb_secret_<8b>"]),
    row("onepassword-service-token", "a 1Password service token", &["ops_eyJ"], r"ops_eyJ[A-Za-z0-9+/_-]{200,1500}={0,2}", &["ops_eyJ<300b>"], &["ops_eyJ<40b>"]).reach(1600),
    row("tailscale-key", "a Tailscale key", &["tskey-"], r"tskey-(?:auth|api|client|scim|webhook)-[A-Za-z0-9]{8,20}-[A-Za-z0-9]{20,40}\b", &["tskey-auth-<12w>-<32w>"], &["tskey-auth-<4w>"]),
    row("ngrok-token", "an ngrok token", &["ngrok_authtoken"], r"(?i:ngrok_authtoken)@=([A-Za-z0-9]{27}_[A-Za-z0-9]{21})\b", &["NGROK_AUTHTOKEN=<27w>_<21w>"], &["NGROK_AUTHTOKEN=<12w>"]),
];

/// The maximum number of bytes on each side of a secret key that are searched for a name such as `aws` or `s3`.
const MAX_AWS: usize = 200;

/// Returns whether the text around a match names AWS or S3, or contains an access key id.
fn is_of_aws(before: &[u8], after: &[u8]) -> bool {
    let before = before[before.len().saturating_sub(MAX_AWS)..].to_ascii_lowercase();
    let after = after[..after.len().min(MAX_AWS)].to_ascii_lowercase();
    let names: [&[u8]; 4] = [b"aws", b"s3", b"akia", b"asia"];
    [before, after].iter().any(|side| names.iter().any(|name| has_word(side, name)))
}

/// Returns whether any word of `side` begins with `name`. Both arguments must be in lower case.
fn has_word(side: &[u8], name: &[u8]) -> bool {
    memchr::memmem::find_iter(side, name).any(|at| at == 0 || !side[at - 1].is_ascii_alphanumeric())
}
