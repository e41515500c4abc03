"""Whose scores the table of rounds has, and on which rows, by how the names of its columns begin."""

# Clients' own rows on which nobody trains
CLIENT_TEST, CLIENT_VALIDATION = "client_test", "client_validation"
NAMES = {
    "train": "global model, training rows",
    "validation": "global model, validation rows",
    "test": "global model, test rows",
    "own_test": "clients' own models, test rows",
    "trained_test": "clients' models after local training, test rows",
    "calibrated_test": "global model with a new head, test rows",
}
# Where clients hold rows out: the scores of the models that they use, as means over the clients
CLIENT_NAMES = {
    CLIENT_TEST: "the models that clients use, their held-out rows",
    CLIENT_VALIDATION: "the models that clients use, their validation rows",
}
