SELECT pg_advisory_xact_lock(7308339910637985388);

CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource text PRIMARY KEY,
    lease text NOT NULL,
    lineage text NOT NULL,
    epoch bigint NOT NULL,
    nonce text NOT NULL,
    seq bigint NOT NULL,
    -- The numbers of the last writes, the newest first: by them a commit without an answer is found.
    trail text NOT NULL DEFAULT '',
    -- Who gave the resource to this lease, and why.
    adopted text NOT NULL DEFAULT '',
    -- The leases that had it before, each as LEASE:LINEAGE:EPOCH: one that comes back needs a higher epoch.
    former text NOT NULL DEFAULT '',
    admitted bigint
);

-- Checks a token against the fence of a resource and moves it on, with the row locked until the transaction ends.
-- p_mode is seal, reentrant, ordered, once or adopt; p_write is the number of the write. To adopt is to give the resource
-- to the token's lease, if its fence is p_from. What was seen before is given back, so that the caller can judge it too.
CREATE OR REPLACE FUNCTION leasehold_admit(
    p_resource text, p_lease text, p_lineage text, p_epoch bigint, p_nonce text, p_seq bigint, p_mode text,
    p_write text, p_from text DEFAULT NULL, p_note text DEFAULT NULL,
    OUT verdict text, OUT seen_lease text, OUT seen_lineage text, OUT seen_epoch bigint, OUT seen_nonce text,
    OUT seen_seq bigint, OUT seen_trail text, OUT seen_former text, OUT in_transaction bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $leasehold$
DECLARE
    high leasehold_fence%ROWTYPE;
    digest text := left(encode(sha256(convert_to(p_resource, 'UTF8')), 'hex'), 16);
    room text := 'leasehold ' || digest || ' ';
    -- As much of the lineage as an application_name has room for.
    line text := right(p_lineage, 16);
    door bigint := ('x' || digest)::bit(64)::bigint;
    patience text;
    said text;
    last bigint := 0;
    next bigint;
BEGIN
    -- Who is in here, of which lineage and with which epoch, is what a newer holder looks for when this session has stopped.
    said := set_config('application_name', room || line || ' ' || p_epoch, true);
    -- What the fence admitted is there after a crash, whatever the role or the database is set to.
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        said := set_config('synchronous_commit', 'on', true);
    END IF;
    in_transaction := txid_current();
    -- Who is in here has the door until the transaction ends, so nobody has to wait for the row.
    IF pg_try_advisory_xact_lock(door) THEN
        -- Most often the fence has our own epoch: then it is checked and moved at once.
        IF p_mode = 'reentrant' THEN
            UPDATE leasehold_fence f
                SET seq = f.seq + 1, trail = rtrim(left(p_write || ' ' || f.trail, 263)), admitted = in_transaction
                WHERE f.resource = p_resource AND f.lease = p_lease AND f.lineage = p_lineage AND f.epoch = p_epoch
                    AND f.nonce = p_nonce
                RETURNING f.lease, f.lineage, f.epoch, f.nonce, f.seq - 1, f.trail
                    INTO seen_lease, seen_lineage, seen_epoch, seen_nonce, seen_seq, seen_trail;
            IF FOUND THEN
                verdict := 'admitted';
                said := set_config('leasehold.admitted', in_transaction::text, true);
                -- As it was before, but for what has fallen off its end.
                seen_trail := substr(seen_trail, 34);
                RETURN;
            END IF;
        END IF;
        SELECT * INTO high FROM leasehold_fence f WHERE f.resource = p_resource FOR UPDATE SKIP LOCKED;
    END IF;
    IF high.resource IS NULL THEN
        patience := current_setting('lock_timeout');
        FOR attempt IN 1 .. 41 LOOP
            IF attempt > 40 THEN
                RAISE EXCEPTION 'the fence of `%` is busy with another session', p_resource USING ERRCODE = '55P03';
            END IF;
            -- An older holder's session gives way, one of another lease where the fence is ours, and to an adoption every
            -- session: at once if it is idle, and a moment later if it is at work.
            PERFORM pg_terminate_backend(a.pid) FROM pg_stat_activity a
                WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
                  AND a.application_name ~ ('^' || room || '[0-9a-f]{16} [0-9]{1,16}$')
                  AND CASE WHEN p_mode = 'adopt' THEN true
                      WHEN substr(a.application_name, length(room) + 1, 16) = line
                          THEN substr(a.application_name, length(room) + 18)::bigint < p_epoch
                      ELSE EXISTS (SELECT 1 FROM leasehold_fence f
                          WHERE f.resource = p_resource AND f.lineage = p_lineage AND f.epoch > 0) END
                  AND (a.state LIKE 'idle in transaction%' OR attempt > 1)
                  AND (a.usename = current_user OR pg_has_role(a.usesysid, 'MEMBER')
                       OR pg_has_role('pg_signal_backend', 'MEMBER'));
            BEGIN
                said := set_config('lock_timeout', '150ms', true);
                PERFORM pg_advisory_xact_lock(door);
                INSERT INTO leasehold_fence (resource, lease, lineage, epoch, nonce, seq)
                    VALUES (p_resource, p_lease, p_lineage, 0, '', 0) ON CONFLICT DO NOTHING;
                SELECT * INTO high FROM leasehold_fence f WHERE f.resource = p_resource FOR UPDATE;
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
        said := set_config('lock_timeout', patience, true);
    END IF;
    seen_lease := high.lease;
    seen_lineage := high.lineage;
    seen_epoch := high.epoch;
    seen_nonce := high.nonce;
    seen_seq := high.seq;
    seen_trail := high.trail;
    seen_former := high.former;
    verdict := 'refused';
    IF p_mode = 'adopt' THEN
        -- Given already, by one whose answer was lost, or still as the operator saw it.
        IF (p_lease, p_epoch, p_lineage, p_nonce, 0) IS DISTINCT FROM
                (high.lease, high.epoch, high.lineage, high.nonce, high.seq)
            AND p_from IS DISTINCT FROM
                concat_ws(':', high.lease, high.epoch, high.lineage, high.nonce, high.seq) THEN
            RETURN;
        END IF;
        -- The caller checks the list, and rolls back if this lease may not come back.
        UPDATE leasehold_fence f
            SET lease = p_lease, lineage = p_lineage, epoch = p_epoch, nonce = p_nonce, seq = 0,
                adopted = coalesce(p_note, f.adopted),
                former = CASE WHEN f.lease = p_lease AND f.lineage = p_lineage THEN f.former
                    ELSE ltrim(f.former || ' ' || concat_ws(':', f.lease, f.lineage, f.epoch)) END
            WHERE f.resource = p_resource;
        verdict := 'admitted';
        RETURN;
    END IF;
    IF high.epoch > 0 THEN
        IF high.lease <> p_lease OR high.lineage <> p_lineage OR p_epoch < high.epoch
            OR (p_epoch = high.epoch AND p_nonce <> high.nonce) THEN
            RETURN;
        END IF;
        IF p_epoch = high.epoch THEN
            last := high.seq;
        END IF;
    END IF;
    CASE p_mode
        WHEN 'seal' THEN next := last;
        WHEN 'reentrant' THEN next := last + 1;
        WHEN 'ordered' THEN next := CASE WHEN p_seq > last THEN p_seq END;
        WHEN 'once' THEN next := CASE WHEN last = 0 THEN 1 END;
        ELSE RAISE EXCEPTION 'unknown mode `%`: use seal, reentrant, ordered or once', p_mode USING ERRCODE = '22023';
    END CASE;
    IF next IS NULL THEN
        RETURN;
    END IF;
    verdict := 'admitted';
    IF p_mode = 'seal' THEN
        -- Also where nothing changes: the answer to this commit is what makes the fence sure.
        UPDATE leasehold_fence f SET lease = p_lease, lineage = p_lineage, epoch = p_epoch, nonce = p_nonce, seq = next
            WHERE f.resource = p_resource;
    ELSE
        UPDATE leasehold_fence f
            SET lease = p_lease, lineage = p_lineage, epoch = p_epoch, nonce = p_nonce, seq = next,
                trail = rtrim(left(p_write || ' ' || f.trail, 263)), admitted = in_transaction
            WHERE f.resource = p_resource;
        said := set_config('leasehold.admitted', in_transaction::text, true);
    END IF;
END
$leasehold$;

-- The same for people and scripts: SELECT leasehold_require('database', '<the token in LEASEHOLD_TOKEN>').
CREATE OR REPLACE FUNCTION leasehold_require(p_resource text, p_token text, p_mode text DEFAULT 'reentrant')
RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $leasehold$
DECLARE
    part text[] := string_to_array(p_token, ':');
    answer record;
BEGIN
    IF p_token IS NULL OR array_length(part, 1) <> 5 OR part[2] !~ '^[0-9]{1,16}$' OR part[3] !~ '^[0-9a-f]{32}$'
        OR part[4] !~ '^[0-9a-f]{32}$' OR part[5] !~ '^[0-9]{1,18}$' OR part[2]::bigint = 0 THEN
        RAISE EXCEPTION 'invalid token: use LEASE:EPOCH:LINEAGE:NONCE:SEQ' USING ERRCODE = '22023';
    END IF;
    SELECT * INTO answer
        FROM leasehold_admit(p_resource, part[1], part[3], part[2]::bigint, part[4], part[5]::bigint, p_mode,
            md5(random()::text || clock_timestamp()::text || txid_current()::text));
    IF answer.verdict = 'admitted' THEN
        RETURN;
    END IF;
    IF answer.seen_lease <> part[1] THEN
        RAISE EXCEPTION 'token of another lease refused: resource=`%` is fenced by lease `%`, the token is of `%`',
            p_resource, answer.seen_lease, part[1] USING ERRCODE = 'LH001';
    END IF;
    IF answer.seen_lineage <> part[3] THEN
        RAISE EXCEPTION 'not this lease: resource=`%` is fenced by a lease `%` of lineage % (epoch %), the token is of one of '
            'lineage %, from another store or namespace', p_resource, part[1], answer.seen_lineage, answer.seen_epoch,
            part[3] USING ERRCODE = 'LH001';
    END IF;
    RAISE EXCEPTION 'stale epoch refused: resource=`%` held=%:% seen=%:%', p_resource, part[1], part[2],
        answer.seen_lease, answer.seen_epoch USING ERRCODE = 'LH001';
END
$leasehold$;

CREATE OR REPLACE FUNCTION leasehold_protect() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $leasehold$
BEGIN
    IF coalesce(current_setting('leasehold.admitted', true), '') <> txid_current()::text OR NOT EXISTS (
        SELECT 1 FROM leasehold_fence f WHERE f.resource = TG_ARGV[0] AND f.admitted = txid_current()) THEN
        RAISE EXCEPTION 'write to `%` refused: this transaction was not admitted to resource `%`; use leasehold sql, or '
            'select leasehold_require first', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'LH002';
    END IF;
    RETURN NULL;
END
$leasehold$;
