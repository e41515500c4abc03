"""BFV vectors of TenSEAL: encrypted whole numbers modulo a prime, and their serialisation."""

import hashlib
import importlib
import os
import struct
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.label_privacy.blinding import PRIME

# Numbers in a vector. There is room for twice as many: the rest is zero, and shows whether a vector was decrypted
# rightly.
SLOTS = 4096

_DEGREE = 2 * SLOTS
# 218 bits in all, the most at this degree for 128-bit security; the last is for keys only
_MODULI = (60, 60, 60, 38)
# Bytes of a vector: two polynomials, and room for their heads
_LARGEST = 2 * (len(_MODULI) - 1) * 8 * _DEGREE + 4096
# Bits of the noise that is added before a client decrypts; from 150 on numbers would be lost in it
_FLOOD = 147

Vector: TypeAlias = Any  # an encrypted vector of SLOTS numbers; TenSEAL has no types


class Context:
    """Parameters and keys of the encryption: clients have the secret key, the server only the public key."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.fingerprint = hashlib.sha256(self.public_bytes()).hexdigest()

    def public_bytes(self) -> bytes:
        """Return parameters and public key, all that the server needs: it never rotates or multiplies ciphertexts."""
        return self._bytes(secret=False)

    def secret_bytes(self) -> bytes:
        """Return the context with the secret key, for clients only."""
        return self._bytes(secret=True)

    def encrypt(self, values: Ints) -> Vector:
        """Return a vector encrypted under the public key; equal values never give equal ciphertexts."""
        return _tenseal().bfv_vector(self.raw, _padded(values))

    def cover(self, masks: Ints) -> Vector:
        """Return ``masks`` encrypted with much noise; added to what a client decrypts, it hides the origin.

        The noise of a product is proportional to its factor, and can be read with the secret key. This adds
        noise that is uniform over 148 bits, where that of a product has 72 at most (docs/secret-labels.md); and as a
        fresh encryption it leaves nothing of the old ciphertext to be seen.
        """
        fresh = self.encrypt(masks)
        return fresh + self.load(_noise(fresh), "the server")

    def load(self, data: bytes, whose: str) -> Vector:
        """Return the vector that ``whose`` made."""
        if len(data) > _LARGEST:
            raise _unreadable(whose, len(data), f"a vector has {_LARGEST} at most")
        try:
            vector = _tenseal().bfv_vector_from(self.raw, data)
            sizes = [part.size() for part in vector.ciphertext()]
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            raise _unreadable(whose, len(data), str(error)) from None
        if vector.size() != _DEGREE or sizes != [2]:
            raise _unreadable(
                whose,
                len(data),
                f"it holds {vector.size()} numbers in {len(sizes)} parts, not {_DEGREE} in one",
            )
        return vector

    def decrypt(self, data: bytes, whose: str) -> Ints:
        """Return the numbers of a vector, from 0 to the prime less one; raise ValueError without the secret key."""
        values = np.array(self.load(data, whose).decrypt(), dtype=np.int64) % PRIME
        if values[SLOTS:].any():
            raise FedskewError(
                f"{whose}: a vector decrypts to noise, the ciphertext was changed or made with another key: enrol "
                "all parties with the same key holder"
            )
        return values[:SLOTS]

    def _bytes(self, secret: bool) -> bytes:
        data: bytes = self.raw.serialize(
            save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
        )
        return data


def times(vector: Vector, factors: Ints) -> Vector:
    """Return every number of the vector times its factor, modulo the prime."""
    return vector * _padded(factors)


def make_context() -> Context:
    """Create new keys, from TenSEAL's cryptographic randomness."""
    ts = _tenseal()
    made = ts.context(
        ts.SCHEME_TYPE.BFV,
        _DEGREE,
        plain_modulus=PRIME,
        coeff_mod_bit_sizes=list(_MODULI),
        n_threads=1,
    )
    return Context(made)


# A loaded context takes 10 MB. Simulated clients hold the same bytes, so they share one; it is gone when they are.
_loaded: WeakValueDictionary[bytes, Context] = WeakValueDictionary()


def load_context(data: bytes, party: str) -> Context:
    """Return the context that was given to ``party`` at enrolment."""
    key = hashlib.sha256(data).digest()
    found = _loaded.get(key)
    if found is not None:
        return found
    ts = _tenseal()
    importlib.import_module("tenseal.sealapi")  # without it the parameters have no type in Python
    try:
        context = Context(ts.context_from(data, 1))
        found = context.raw.seal_context().data.key_context_data().parms()
        moduli = tuple(modulus.bit_count() for modulus in found.coeff_modulus())
        numbers = (found.poly_modulus_degree(), found.plain_modulus().value(), moduli)
        if not context.raw.has_public_key() or numbers != (_DEGREE, PRIME, _MODULI):
            raise ValueError(f"it has other parameters than this version of fedskew: {numbers}")
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise FedskewError(
            f"{party}: its encryption context cannot be read ({error}): enrol it again"
        ) from None
    _loaded[key] = context
    return context


def _noise(like: Vector) -> bytes:
    """Return a serialised ciphertext of zero that is only noise: uniform below 2^147, in both directions.

    TenSEAL offers no way to add noise, so this writes SEAL's own format: a ciphertext is two polynomials, and its
    numbers are the first plus the second times the secret key. The second is zero here, the first is the noise modulo
    each prime.
    """
    from tenseal import sealapi

    primes = sealapi.CoeffModulus.Create(_DEGREE, list(_MODULI))
    moduli = [modulus.value() for modulus in primes][:-1]
    drawn = os.urandom(20 * _DEGREE)
    low = (1 << (_FLOOD + 1)) - 1
    noise = []
    for at in range(0, len(drawn), 20):
        noise.append((int.from_bytes(drawn[at : at + 20], "little") & low) - (1 << _FLOOD))
    words = np.zeros((2, len(moduli), _DEGREE), dtype="<u8")
    words[0] = [[value % modulus for value in noise] for modulus in moduli]
    wire: bytes = like.serialize()
    start = wire.index(_SEAL)  # TenSEAL's own few bytes come before: the size of the vector
    version = wire[start + 3 : start + 5]
    array = _sealed(version, struct.pack("<Q", words.size) + words.tobytes())
    shape = struct.pack(
        "<4QBQQQdQ", *like.ciphertext()[0].parms_id(), 0, 2, _DEGREE, len(moduli), 1.0, 1
    )
    body = _sealed(version, shape + array)
    return b"\x0a\x02\x80\x40\x12" + _varint(len(body)) + body


_SEAL = b"\x5e\xa1\x10"  # how everything that SEAL writes begins


def _sealed(version: bytes, content: bytes) -> bytes:
    """Return content behind SEAL's header of 16 bytes, not compressed."""
    return _SEAL + version + bytes(3) + struct.pack("<Q", 16 + len(content)) + content


def _varint(number: int) -> bytes:
    """Return a length in the encoding of protocol buffers.

    >>> _varint(300).hex()
    'ac02'
    """
    low = number & 127
    rest = number >> 7
    if rest:
        return bytes([low | 128]) + _varint(rest)
    return bytes([low])


def _padded(values: Ints) -> list[int]:
    """Return the numbers modulo the prime, nearest to zero, padded with zeros to the length of a vector."""
    nearest = (values + PRIME // 2) % PRIME - PRIME // 2
    result: list[int] = np.concatenate(
        [nearest, np.zeros(_DEGREE - len(nearest), dtype=np.int64)]
    ).tolist()
    return result


def _unreadable(whose: str, size: int, why: str) -> FedskewError:
    return FedskewError(
        f"{whose}: a ciphertext of {size} bytes cannot be read ({why}): send it again, made with this context"
    )


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise FedskewError("secret labels need TenSEAL: pip install 'fedskew[he]'") from None
    return tenseal
