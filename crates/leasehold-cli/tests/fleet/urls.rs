//! Wrong URLs: each gets one line that says what is wrong and what is allowed, and nothing is reached.

use crate::at;

/// A URL and what is said about it.
const WRONG: &[(&str, &str)] = &[
    // Every scheme: ports, options, namespaces.
    ("redis://127.0.0.1:0", "the port of the host `127.0.0.1:0` is not a number from 1 to 65535"),
    ("postgres://127.0.0.1:70000/db", "1 to 65535"),
    ("nats://127.0.0.1:x", "1 to 65535"),
    ("etcd://127.0.0.1:-1", "1 to 65535"),
    ("mysql://127.0.0.1:/db", "1 to 65535"),
    ("do+https://127.0.0.1:99999", "1 to 65535"),
    ("redis:127.0.0.1", "`//` is missing after `redis:`"),
    ("postgres:/db", "`//` is missing"),
    ("s3:bucket", "`//` is missing"),
    ("redis://127.0.0.1?sslmode=x", "the option `sslmode` is not known; known are `mode`"),
    ("postgres://127.0.0.1/db?sslmod=x", "the option `sslmod` is not known; known are `dbname`"),
    ("mysql://127.0.0.1/db?sslmode=x", "the option `sslmode` is not known"),
    ("nats://127.0.0.1?x=y", "the option `x` is not known"),
    ("etcd://127.0.0.1?x=y", "the option `x` is not known"),
    ("s3://bucket?x=y", "the option `x` is not known"),
    ("gs://bucket?x=y", "the option `x` is not known"),
    ("az://bucket?x=y", "the option `x` is not known"),
    ("dynamodb://eu-central-1/leases?x=y", "the option `x` is not known"),
    ("firestore://project/leases?x=y", "the option `x` is not known"),
    ("do+https://h?x=y", "the option `x` is not known"),
    ("redis://127.0.0.1?namespace=Team", "allowed are 1 to 40 lower-case letters"),
    ("postgres://127.0.0.1/db?namespace=", "invalid namespace ``: it is empty"),
    ("nats://127.0.0.1?namespace=a.b", "it has the character `.`"),
    ("s3://bucket?namespace=a/b", "it has the character `/`"),
    ("etcd://127.0.0.1?namespace=-x", "it begins with `-`"),
    ("redis://127.0.0.1?namespace=a&namespace=b", "the option `namespace` is given twice"),
    ("redis://127.0.0.1?namespace", "an option has no `=`"),
    // Their own parts.
    ("redis://127.0.0.1/db", "the path must be the number of a database, such as `/0`"),
    ("redis://a,b", "several hosts need the option `mode=cluster` or `mode=sentinel`"),
    ("redis://127.0.0.1?mode=primary", "the option `mode` is `single`, `cluster` or `sentinel`"),
    ("redis://127.0.0.1?mode=sentinel", "the path must be the name that the sentinels know the primary by"),
    ("redis://127.0.0.1?wait_replicas=many", "wait_replicas"),
    ("redis://127.0.0.1?cacert=/x", "write `rediss://`"),
    ("postgres://127.0.0.1/db?sslmode=on", "sslmode `on` is not `disable`, `prefer`, `require`"),
    ("postgres://127.0.0.1/db?table=a.b.c", "table"),
    ("postgres://127.0.0.1/db?target_session_attrs=standby", "only a primary is read"),
    ("mysql://127.0.0.1", "name one database: `mysql://user@host/database`"),
    ("mysql://a,b/db", "only one host can be named"),
    ("mysql://127.0.0.1/db?ssl-mode=on", "the option `ssl-mode` is one of"),
    ("nats://127.0.0.1/bucket", "use `?namespace=NAME`"),
    ("nats://127.0.0.1?replicas=9", "`replicas` is not a number from 1 to"),
    ("nats://127.0.0.1?creds=x", "`creds` is not an absolute path"),
    ("etcd://127.0.0.1/prefix", "a path is not allowed here; a namespace is `?namespace=NAME`"),
    ("etcd://127.0.0.1?cacert=/x", "begin the url with `etcds://`"),
    ("s3://", "the bucket is missing; use s3://bucket/prefix"),
    ("s3:///prefix", "the bucket is missing"),
    ("gs://", "the bucket is missing; use gs://bucket/prefix"),
    ("az://", "the bucket is missing; use az://bucket/prefix"),
    ("s3://a,b/prefix", "after `//` stands one bucket"),
    ("s3://bucket?endpoint=localhost", "the option `endpoint`"),
    ("s3://bucket?region=Frankfurt am Main", "the option `region` is not a region's name"),
    ("dynamodb://", "name a table: dynamodb://table or dynamodb://region/table"),
    ("dynamodb://eu-central-1/a", "a table has 3 to 255"),
    ("dynamodb://EU/leases", "a region has lower-case letters"),
    ("firestore://", "firestore://project/collection"),
    ("firestore://project", "firestore://project/collection"),
    ("do+http://example.com", "use do+https"),
    ("do+https://", "name one host, as in do+https://"),
    ("do+https://me@h", "do+https://:TOKEN@host"),
    ("mongodb://127.0.0.1", "`mongodb` is not a scheme; use `sqlite:`"),
    ("REDIS://127.0.0.1", "`REDIS` is not a scheme"),
    ("redis://127.0.0.1\n", "control character"),
    ("redis://h%00st", "control character"),
];

#[test]
fn a_wrong_url_is_refused_with_what_is_wrong_and_what_is_allowed() {
    let home = at("sqlite:");
    let mut faults = Vec::new();
    for (url, says) in WRONG {
        for line in [&["acquire", "job", "--store", url][..], &["doctor", url], &["migrate", "sqlite:", url]] {
            let done = home.done(line);
            let is_right = done.code == 64
                && done.stderr.contains(says)
                && done.stdout.is_empty()
                && done.stderr.lines().count() == 1
                && done.stderr.starts_with("leasehold: invalid ");
            if !is_right {
                faults.push(format!("{line:?} should say {says}: {done:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(!home.path(".local").exists(), "nothing was made");
}
